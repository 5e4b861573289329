"""The door's gRPC, by the clients that are published."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from bertender.core.errors import ServingError
from serve.client.endpoint import Endpoint
from serve.door import grpc_front
from serve.door.engine import InferRequest
from serve.door.service import Door, DoorSettings
from serve.wire import Tensor, joined
from tests.serve.door.fake_engine import (
    BREAK,
    BUSY,
    HOLD,
    FakeEngine,
    RunningDoor,
    model_of,
    running_door,
)
from tests.serve.door.test_attacks import with_data
from tests.served import until

TEXTS = ["good pear", "bad pear", "plum"]
EXPECTED = ["positive", "negative", "unknown"]


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    with running_door(admin_token="the admin token") as door:
        yield door


@pytest.fixture
def client(door: RunningDoor) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{door.grpc_port}") as client:
        yield client


@pytest.fixture
def stub(door: RunningDoor) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def text_input(texts: list[str]) -> Any:
    tensor = tritonclient.grpc.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
    return tensor


def labels(result: Any) -> list[str]:
    return [value.decode() for value in result.as_numpy("LABEL").reshape(-1)]


@pytest.mark.parametrize("names", [None, ["SCORE", "LABEL"]])
def test_tritonclient_over_grpc(client: Any, names: list[str] | None) -> None:
    outputs = names and [tritonclient.grpc.InferRequestedOutput(name) for name in names]
    result = client.infer("classifier", [text_input(TEXTS)], outputs=outputs, request_id="an id")
    assert labels(result) == EXPECTED
    assert result.as_numpy("SCORE").tolist() == [[9], [8], [4]]
    assert (result.as_numpy("LOGITS") is None) is (names is not None)
    assert result.get_response().id == "an id"


def test_tritonclient_over_asyncio(door: RunningDoor) -> None:
    async def ask() -> list[str]:
        url = f"127.0.0.1:{door.grpc_port}"
        async with tritonclient.grpc.aio.InferenceServerClient(url) as client:
            results = await asyncio.gather(
                *(client.infer("classifier", [text_input([text])]) for text in TEXTS)
            )
        return [label for result in results for label in labels(result)]

    assert asyncio.run(ask()) == EXPECTED


def other_channel(door: RunningDoor) -> grpc.Channel:
    """Return a channel that shares no connection with others."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}", options)


def test_what_is_served(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("classifier") and client.is_model_ready("classifier", "1")
    assert client.get_server_metadata().name == "bertender"
    metadata = client.get_model_metadata("classifier")
    assert metadata.platform == "python" and list(metadata.inputs[0].shape) == [-1, 1]
    assert {each.name for each in metadata.outputs} == {"LABEL", "SCORE", "LOGITS"}
    config = client.get_model_config("classifier", as_json=True)["config"]
    assert config["max_batch_size"] == 64
    assert config["parameters"]["longest_input"]["string_value"] == "128"


@pytest.mark.parametrize(
    ("text", "status"), [(BUSY, "UNAVAILABLE"), (BREAK, "INTERNAL"), ("", "INVALID_ARGUMENT")]
)
def test_a_refusal_has_its_status(client: Any, text: str, status: str) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("classifier", [text_input([text])])
    assert refused.value.status() == f"StatusCode.{status}"
    assert "a bad day" not in str(refused.value), "what failed is for the log"


def test_texts_in_the_message_itself(stub: Any) -> None:
    request = service_pb2.ModelInferRequest(model_name="classifier")
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=(2, 1))
    tensor.contents.bytes_contents.extend([b"good pear", b"plum"])
    assert b"positive" in stub.ModelInfer(request).raw_output_contents[0]
    tensor.contents.bytes_contents.append(b"one more")
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_raw_texts_as_other_clients_send_them(stub: Any) -> None:
    request = service_pb2.ModelInferRequest(model_name="classifier")
    tensor = request.inputs.add(name="TEXT", datatype="BYTES", shape=(1, 1))
    tensor.contents.SetInParent()  # empty, by MLServer
    tensor.parameters["binary_data_size"].int64_param = 8  # by KServe
    request.raw_input_contents.append(b"\4\0\0\0pear")
    assert stub.ModelInfer(request).raw_output_contents
    tensor.parameters["binary_data_size"].int64_param = 9
    with pytest.raises(grpc.RpcError, match="has not the 9 bytes"):
        stub.ModelInfer(request)


def test_of_several_forwarded_addresses_the_last_names_the_caller() -> None:
    """Some versions of grpc give all values of this name, others the last alone."""
    sent = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "9.9.9.9")]
    call = SimpleNamespace(invocation_metadata=lambda: sent, peer=lambda: "ipv4:127.0.0.1:1")
    service = grpc_front.Service(Door(FakeEngine(), DoorSettings(behind_proxy=True)))
    assert service._connection(call) == "9.9.9.9"


def test_bytes_that_are_no_message(door: RunningDoor) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff\xff")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_streams_are_refused_clearly(stub: Any) -> None:
    with pytest.raises(grpc.RpcError, match="Send each request with ModelInfer") as refused:
        list(stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest()])))
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_the_repository_needs_the_token(client: Any, door: RunningDoor) -> None:
    with pytest.raises(InferenceServerException, match="restricted"):
        client.get_model_repository_index()
    for name in ("bertender-admin-token", "triton-grpc-protocol-bertender-admin-token"):
        headers = {name: "the admin token"}
        index = client.get_model_repository_index(headers=headers)
        assert [each.name for each in index.models] == ["classifier"]
        client.load_model("classifier", headers=headers)
        assert door.engine.loaded == ["classifier"]
        client.unload_model("classifier", headers=headers)
        assert door.engine.loaded == []
    with pytest.raises(InferenceServerException, match="not served"):
        client.get_inference_statistics(headers=headers)


def test_cancelled_calls_by_the_thousand(door: RunningDoor) -> None:
    """Each stops its work; none of them is cut off inside the engine."""
    before, calls = len(door.engine.abandoned), 2000

    async def cancel() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = service_pb2.ModelInferRequest(model_name="classifier")
            request.inputs.add(name="TEXT", datatype="BYTES", shape=(1, 1))
            request.raw_input_contents.append(b"\4\0\0\0HOLD")
            for _ in range(calls // 100):
                waiting = [stub.ModelInfer(request) for _ in range(100)]
                await asyncio.sleep(0.02)
                for call in waiting:
                    call.cancel()
            request.raw_input_contents[0] = b"\4\0\0\0plum"
            assert (await stub.ModelInfer(request)).raw_output_contents

    asyncio.run(cancel())
    deadline = time.monotonic() + 10
    while (
        started := sum(each.inputs[0].data[4:] == HOLD.encode() for each in door.engine.requests)
    ) > len(door.engine.abandoned) - before:
        assert time.monotonic() < deadline, started
        time.sleep(0.05)
    assert started > 0
    done = door.engine.done
    door.call(door.engine.let_go.set)
    while door.engine.done < done + started:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_our_client_does_not_repeat_a_message_that_is_too_large(door: RunningDoor) -> None:
    with Endpoint(f"grpc://127.0.0.1:{door.grpc_port}") as endpoint:
        started = time.monotonic()
        with pytest.raises(ServingError, match="refused"):
            endpoint.classify(["a" * 3_000_000])
        assert time.monotonic() - started < 20


def test_messages_in_memory_are_counted() -> None:
    with running_door(most_held_bytes=5_000) as door:
        url = f"127.0.0.1:{door.grpc_port}"
        with tritonclient.grpc.InferenceServerClient(url) as client:
            client.infer("classifier", [text_input(["plum"])])
            with pytest.raises(InferenceServerException, match="Send it later") as refused:
                client.infer("classifier", [text_input(["a" * 6_000])])
        assert refused.value.status() == "StatusCode.UNAVAILABLE"
        deadline = time.monotonic() + 10  # a response may be there before its bytes are let go
        while door.door.held_bytes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert door.door.held_bytes == 0


def silent(ended: threading.Event) -> Iterator[bytes]:
    """A call whose message does not come."""
    ended.wait(30)
    yield from ()


def test_few_messages_are_read_at_a_time_and_those_that_stop_make_way() -> None:
    ended = threading.Event()

    with (
        running_door(most_held_bytes=4 * 2**20) as door,
        grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel,
    ):
        open_call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        opened = [open_call.future(silent(ended)) for _ in range(4)]
        time.sleep(0.2)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=10).live
        statuses = {call.exception(10).code().name for call in opened[:2]}
        assert statuses == {"DEADLINE_EXCEEDED"}
        ended.set()


def test_calls_without_a_message_keep_nobody_out() -> None:
    opened, ended = [], threading.Event()

    with running_door(most_connections=8, body_s=1.0) as door:
        address = f"127.0.0.1:{door.grpc_port}"
        with grpc.insecure_channel(address) as channel:
            open_call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(20):
                opened.append(open_call.future(silent(ended)))
                time.sleep(0.02)
            request = service_pb2.ServerLiveRequest()
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(request, timeout=10).live
            statuses = {call.exception(10).code().name for call in opened}
            assert statuses == {"DEADLINE_EXCEEDED"}
            ended.set()
            with pytest.raises(grpc.RpcError) as refused:
                open_call(iter(()), timeout=10)
            assert refused.value.code().name == "INVALID_ARGUMENT"


def test_many_calls_without_a_message_delay_others_by_seconds_at_most() -> None:
    ended = threading.Event()

    with (
        running_door(most_held_bytes=8 * 2**20, most_connections=200) as door,
        grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel,
    ):
        open_call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        opened = [open_call.future(silent(ended)) for _ in range(90)]
        time.sleep(0.2)
        with other_channel(door) as polite:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(polite)
            assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=15).live
        ended.set()
        assert opened


@contextmanager
def unread_calls(door: RunningDoor, count: int) -> Iterator[None]:
    """Make calls on a connection that reads no response."""

    def field(name: str, value: str) -> bytes:
        return b"\0%c%s%c%s" % (len(name), name.encode(), len(value), value.encode())

    def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
        return (
            struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content
        )

    head = b"".join(
        field(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/inference.GRPCInferenceService/ServerLive"),
            (":authority", "door"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )
    )
    no_window = struct.pack(">HI", 4, 0)
    with socket.create_connection(("127.0.0.1", door.grpc_port), 10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, no_window))
        for stream in range(1, 2 * count, 2):
            connection.sendall(frame(1, 4, stream, head) + frame(0, 1, stream, bytes(5)))
        time.sleep(0.5)
        yield


def is_live(channel: grpc.Channel) -> bool:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        return bool(stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=10).live)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        return False


class SlowEngine(FakeEngine):
    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        await asyncio.sleep(0.002 * (request.number % 7))
        return await super().infer(request)


def test_a_client_may_have_more_calls_than_run_at_a_time() -> None:
    """It lets them wait; the server must not refuse one for those that it has just answered."""

    async def ask(port: int) -> list[Any]:
        async with tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{port}") as client:
            asked = (client.infer("classifier", [text_input(["plum"])]) for _ in range(3000))
            return await asyncio.gather(*asked, return_exceptions=True)

    with running_door(SlowEngine()) as door:
        failed = [each for each in asyncio.run(ask(door.grpc_port)) if isinstance(each, Exception)]
    assert not failed


def test_a_connection_that_reads_nothing_leaves_calls_to_others() -> None:
    with (
        running_door(most_connections=150) as door,
        unread_calls(door, 200),
        other_channel(door) as polite,
    ):
        assert is_live(polite)


def test_calls_that_nobody_reads_end_with_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_front, "OLDEST_S", 1.5)
    monkeypatch.setattr(grpc_front, "GRACE_S", 0.5)
    with (
        running_door(most_connections=50) as door,
        unread_calls(door, 50),
        other_channel(door) as polite,
    ):
        assert not is_live(polite)
        until(lambda: is_live(polite))


@pytest.mark.parametrize("longest_wait_s", [0.0, 60.0], ids=["any time", "a minute"])
def test_a_call_ends_with_its_connection_after_its_longest_wait(
    longest_wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_front, "OLDEST_S", 0.1)
    monkeypatch.setattr(grpc_front, "GRACE_S", 0.1)
    engine = FakeEngine({"classifier": model_of(longest_wait_s=longest_wait_s)})
    with running_door(engine) as door, other_channel(door) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        waiting = stub.ModelInfer.future(with_data(joined([HOLD.encode()])), timeout=20)
        time.sleep(1.5)
        assert not waiting.done()
        door.call(engine.let_go.set)
        assert waiting.result().model_name == "classifier"


@pytest.fixture
def short_lived(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDoor]:
    """A door whose connections end after a tenth of a second."""
    monkeypatch.setattr(grpc_front, "OLDEST_S", 0.1)
    monkeypatch.setattr(grpc_front, "GRACE_S", 20.0)
    with running_door() as door:
        yield door


SHORT_S = 3.0
"""Time of calls at a door whose connections are short-lived."""


def call_with_tritonclient(url: str) -> None:
    end = time.monotonic() + SHORT_S

    def ask(text: str) -> None:
        while time.monotonic() < end:
            assert labels(client.infer("classifier", [text_input([text])]))

    with tritonclient.grpc.InferenceServerClient(url) as client, ThreadPoolExecutor() as pool:
        list(pool.map(ask, TEXTS))


def call_with_asyncio(url: str) -> None:
    async def run() -> None:
        end = time.monotonic() + SHORT_S

        async def ask(text: str) -> None:
            while time.monotonic() < end:
                assert labels(await client.infer("classifier", [text_input([text])]))

        async with tritonclient.grpc.aio.InferenceServerClient(url) as client:
            await asyncio.gather(*map(ask, 10 * TEXTS))

    asyncio.run(run())


def call_with_our_own(url: str) -> None:
    end = time.monotonic() + SHORT_S

    def ask(text: str) -> None:
        with Endpoint(f"grpc://{url}", retries=0) as endpoint:
            while time.monotonic() < end:
                assert endpoint.classify([text])

    with ThreadPoolExecutor() as pool:
        list(pool.map(ask, TEXTS))


@pytest.mark.parametrize("call", [call_with_tritonclient, call_with_asyncio, call_with_our_own])
def test_no_call_is_lost_with_its_connection(
    call: Callable[[str], None], short_lived: RunningDoor
) -> None:
    call(f"127.0.0.1:{short_lived.grpc_port}")
    assert len({each.caller for each in short_lived.engine.requests}) > 5


def test_a_call_outlives_the_age_of_its_connection(short_lived: RunningDoor) -> None:
    url = f"127.0.0.1:{short_lived.grpc_port}"
    with (
        tritonclient.grpc.InferenceServerClient(url) as client,
        ThreadPoolExecutor() as pool,
    ):
        held = pool.submit(client.infer, "classifier", [text_input([HOLD])])
        time.sleep(1)
        assert labels(client.infer("classifier", [text_input(["plum"])])) == ["unknown"]
        short_lived.call(short_lived.engine.let_go.set)
        assert labels(held.result(10)) == ["unknown"]
    first, second = (each.caller for each in short_lived.engine.requests)
    assert first != second
