"""Both real servers under attack: no process ends or hangs, each answer is a refusal or right, and
memory stays as it was."""

from __future__ import annotations

import functools
import json
import random
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import tritonclient.http
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from serve.door.engine import RefusedError
from serve.door.grpc_front import draft_of
from serve.door.http_bodies import read_request
from serve.door.requests import Asked, checked
from serve.server.server import Server
from serve.wire import HEADER_LENGTH, Tensor, joined
from tests.serve.door.fake_engine import model_of
from tests.serve.door.raw_http import Answer, body, exchange, get, post, read_answer
from tests.serve.door.test_attacks import GRPC_ATTACKS, HTTP_ATTACKS, made
from tests.serve.door.test_requests import (
    BINARY,
    HEAD,
    MESSAGE,
    bodies,
    changes,
    mutated,
    parameters,
)
from tests.serve.processes import family_of
from tests.served import served as running

MB = 2**20
MOST_GROWTH = 96 * MB
MODEL = model_of(
    max_batch_size=16,
    outputs={
        "LABEL": ("BYTES", (1,)),
        "SCORE": ("FP32", (1,)),
        "LOGITS": ("FP32", (2,)),
        "TRUNCATED": ("BOOL", (1,)),
    },
)
FUZZ = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
counts = pytest.mark.parametrize("count", [40, pytest.param(5000, marks=pytest.mark.slow)])
"""Of requests of each of four kinds: 20,000 in the slow suite, to each server."""


def processes(server: Server) -> list[psutil.Process]:
    assert server.door is not None
    return [psutil.Process(server.door.pid), *family_of(server)]


def memory(server: Server) -> int:
    """Return the bytes that the processes have of their own, without what they share."""
    return sum(each.memory_full_info().uss for each in processes(server))


def stub_of(channel: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def stub(served: Server) -> Iterator[Any]:
    unlimited = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(f"127.0.0.1:{served.config.grpc_port}", unlimited) as channel:
        yield stub_of(channel)


@contextmanager
def unharmed(server: Server, local: Classifier, is_long: bool = False) -> Iterator[None]:
    """Assert that the processes are the same after the block, answer, and have not grown."""
    before = {each.pid for each in processes(server)}
    if is_long:
        for _ in range(300):
            check_answers(server, local)
    held = memory(server)
    yield
    assert {each.pid for each in processes(server)} == before
    check_answers(server, local)
    if is_long:
        assert memory(server) < held + MOST_GROWTH


def check_answers(server: Server, local: Classifier) -> None:
    answer = exchange(server.config.http_port, post(body(data=["plum"])))
    assert answer is not None and answer.status == 200
    assert labels_of(answer) == labels(local, ("plum",))


@functools.lru_cache(maxsize=20_000)
def label(local: Classifier, text: str) -> str:
    return local.labels[int(local.logits([(text,)]).argmax())]


def labels(local: Classifier, texts: tuple[str, ...]) -> list[str]:
    return [label(local, text) for text in texts]


def labels_of(answer: Answer) -> list[str] | None:
    """Return the labels of a response; None where it was not asked for them."""
    length = answer.headers.get(HEADER_LENGTH)
    result = tritonclient.http.InferenceServerClient.parse_response_body(
        answer.body, header_length=length and int(length)
    )
    array = result.as_numpy("LABEL")
    if array is None:
        return None
    values = array.reshape(-1).tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def check(status: int, found: list[str] | None, asked: Asked | None, local: Classifier) -> None:
    """Assert that an answer is a refusal or right.

    Args:
        status: as of HTTP.
        found: labels in it, if it has them.
        asked: what the request asks; None where it is to be refused.
        local: the same model.
    """
    if asked is None:
        assert 400 <= status < 500
    elif status == 200:
        assert (found is None) == bool(asked.outputs and "LABEL" not in asked.outputs)
        if found is not None:
            texts = [text for (text,) in asked.examples()]
            assert found == labels(local, tuple(text.decode() for text in texts))
    else:  # too long for the model, or for its own wait
        assert status == 400 or (status == 504 and asked.request.timeout_ms is not None)


def asked_over_http(content: bytes, header_length: str | None) -> Asked | None:
    with suppress(RefusedError):
        return checked(read_request(content, header_length), MODEL, 1, "me", is_http=True)
    return None


def asked_over_grpc(content: bytes) -> Asked | None:
    with suppress(RefusedError, DecodeError):
        request = service_pb2.ModelInferRequest.FromString(content)
        if request.model_name == "classifier" and request.model_version in ("", "1"):
            return checked(draft_of(request), MODEL, 1, "me", is_http=False)
    return None


@pytest.mark.fault(
    "a request is an attack that is known",
    "it is refused; no process ends or hangs ([list](../../benchmarks/reports/servers.md#attacks))",
)
@pytest.mark.server
@pytest.mark.parametrize("name", HTTP_ATTACKS)
def test_http_attacks(served: Server, local: Classifier, name: str) -> None:
    attack, status = HTTP_ATTACKS[name]
    content = made(attack)
    with unharmed(served, local):
        answer = exchange(served.config.http_port, content)
    assert answer is not None and answer.status == status and answer.error


@pytest.mark.fault(
    "a request is an attack that is known",
    "it is refused; no process ends or hangs ([list](../../benchmarks/reports/servers.md#attacks))",
)
@pytest.mark.server
@pytest.mark.parametrize("name", GRPC_ATTACKS)
def test_grpc_attacks(served: Server, local: Classifier, stub: Any, name: str) -> None:
    attack, status = GRPC_ATTACKS[name]
    request = made(attack)
    with unharmed(served, local), pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request, timeout=20)
    # a batch of this server is smaller, and so is its largest message
    assert refused.value.code().name in (status, "RESOURCE_EXHAUSTED")


@pytest.mark.fault(
    "20,000 requests are random or damaged",
    "each is refused, or answered right; no process ends, memory stays",
)
@pytest.mark.server
@counts
def test_any_json(served: Server, local: Classifier, count: int) -> None:
    @settings(max_examples=count, **FUZZ)
    @given(bodies)
    def attack(content: Mapping[str, Any]) -> None:
        sent = json.dumps(content).encode()
        answer = exchange(served.config.http_port, post(sent))
        assert answer is not None
        found = labels_of(answer) if answer.status == 200 else None
        check(answer.status, found, asked_over_http(sent, None), local)

    with unharmed(served, local, is_long=count > 1000):
        attack()


@pytest.mark.fault(
    "20,000 requests are random or damaged",
    "each is refused, or answered right; no process ends, memory stays",
)
@pytest.mark.server
@counts
def test_mutated_http(served: Server, local: Classifier, count: int) -> None:
    @settings(max_examples=count, **FUZZ)
    @given(changes, st.one_of(st.just(HEAD), st.integers(0, 2 * len(BINARY))))
    def attack(edits: list[tuple[int, int, bytes]], length: int) -> None:
        sent = mutated(BINARY, edits)
        answer = exchange(served.config.http_port, post(sent, f"{HEADER_LENGTH}: {length}"))
        assert answer is not None
        found = labels_of(answer) if answer.status == 200 else None
        check(answer.status, found, asked_over_http(sent, str(length)), local)
        # the head too: what it asks is not known then, or whether it is whole
        whole = mutated(post(sent, f"{HEADER_LENGTH}: {length}"), edits)
        with socket.create_connection(("127.0.0.1", served.config.http_port), 20) as connection:
            connection.sendall(whole)
            connection.shutdown(socket.SHUT_WR)
            answer = read_answer(connection)
        assert answer is None or answer.status == 200 or 400 <= answer.status < 500

    with unharmed(served, local, is_long=count > 1000):
        attack()


def check_grpc(stub: Any, content: bytes, local: Classifier) -> None:
    status, found = 200, None
    try:
        answer = service_pb2.ModelInferResponse.FromString(stub(content, timeout=20))
    except grpc.RpcError as error:
        known = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "DEADLINE_EXCEEDED": 504}
        status = known[error.code().name]
    else:
        for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True):
            if output.name == "LABEL":
                values = Tensor("LABEL", "BYTES", tuple(output.shape), data).array()
                found = [value.decode() for value in values.reshape(-1)]
    check(status, found, asked_over_grpc(content), local)


@pytest.fixture
def call(served: Server) -> Iterator[Any]:
    """Send the bytes of a message, and return those of the answer."""
    with grpc.insecure_channel(f"127.0.0.1:{served.config.grpc_port}") as channel:
        yield channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")


def message_of(content: Mapping[str, Any], raw: bool) -> bytes:
    """Return JSON as a message, as far as it fits."""
    request = service_pb2.ModelInferRequest(model_name="classifier")
    with suppress(TypeError, ValueError):
        request.id = content.get("id") or ""
    for each in content["inputs"]:
        tensor = request.inputs.add()
        with suppress(TypeError, ValueError):
            tensor.name, tensor.datatype = each["name"], each["datatype"]
            tensor.shape.extend(each["shape"])
            texts = [text.encode() for text in each["data"] if isinstance(text, str)]
            if raw:
                request.raw_input_contents.append(
                    b"".join(len(text).to_bytes(4, "little") + text for text in texts)
                )
            else:
                tensor.contents.bytes_contents.extend(texts)
    for name, value in (content.get("parameters") or {}).items():
        with suppress(TypeError, ValueError):
            kind = {bool: "bool_param", int: "int64_param", float: "double_param"}
            setattr(request.parameters[name], kind.get(type(value), "string_param"), value)
    for each in content.get("outputs", ()):
        request.outputs.add(name=each["name"])
    return bytes(request.SerializeToString())


@pytest.mark.fault(
    "20,000 requests are random or damaged",
    "each is refused, or answered right; no process ends, memory stays",
)
@pytest.mark.server
@counts
def test_any_message(served: Server, local: Classifier, call: Any, count: int) -> None:
    @settings(max_examples=count, **FUZZ)
    @given(bodies, parameters, st.booleans())
    def attack(content: Mapping[str, Any], more: Mapping[str, Any], raw: bool) -> None:
        check_grpc(call, message_of({"parameters": more, **content}, raw), local)

    with unharmed(served, local, is_long=count > 1000):
        attack()


@pytest.mark.fault(
    "20,000 requests are random or damaged",
    "each is refused, or answered right; no process ends, memory stays",
)
@pytest.mark.server
@counts
def test_mutated_messages(served: Server, local: Classifier, call: Any, count: int) -> None:
    places = st.integers(0, len(MESSAGE) - 1)
    edits_of_messages = st.lists(
        st.tuples(places, st.integers(0, 3), st.binary(max_size=4)), max_size=3
    )

    @settings(max_examples=count, **FUZZ)
    @given(edits_of_messages)
    def attack(edits: list[tuple[int, int, bytes]]) -> None:
        check_grpc(call, mutated(MESSAGE, edits), local)

    with unharmed(served, local, is_long=count > 1000):
        attack()


NO_ROOM = ("the queue is full", "RST_STREAM with error code 7")
"""Of refusals that may be sent again: of the backend, and of HTTP/2 (REFUSED_STREAM), by which grpc
answers one that resets many streams."""


def fine_message() -> Any:
    return service_pb2.ModelInferRequest.FromString(MESSAGE)


@pytest.mark.fault(
    "100,000 gRPC calls expire, and 100,000 are cancelled", "no process ends, and memory stays"
)
@pytest.mark.server
@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_calls_that_expire_or_are_cancelled(
    served: Server, local: Classifier, stub: Any, count: int
) -> None:
    """So many of each kind; those that are in time are beside them."""
    chance = random.Random(0)
    statuses: Counter[str] = Counter()

    def attack(count: int) -> None:
        while min(statuses["DEADLINE_EXCEEDED"], statuses["CANCELLED"]) < count:
            waits = [chance.choice([0.0005, 0.001, 0.003, 0.01, None, None]) for _ in range(50)]
            calls = [stub.ModelInfer.future(fine_message(), timeout=wait) for wait in waits]
            for call, wait in zip(calls, waits, strict=True):
                if wait is None:
                    call.cancel()
                try:
                    call.result()
                    statuses["OK"] += 1
                except grpc.FutureCancelledError:
                    statuses["CANCELLED"] += 1
                except grpc.RpcError as error:
                    name, reason = error.code().name, error.details()
                    if any(words in reason for words in NO_ROOM):
                        name = "NO ROOM"
                    elif name not in ("CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
                        name = f"{name}: {reason}"
                    statuses[name] += 1

    attack(count // 10)  # 50 calls at once need more memory than one, and keep it
    with unharmed(served, local, is_long=count > 1000):
        attack(count)
    assert {*statuses} <= {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "NO ROOM"}


@pytest.mark.fault(
    "the own `timeout` of a request passes in the queue", "504 for that request, and no alert"
)
@pytest.mark.server
def test_a_request_whose_own_timeout_passes_in_the_queue(
    served: Server, local: Classifier, stub: Any
) -> None:
    busy = post(body({"parameters": {"truncate": True}}, data=["pear " * 80] * 16, shape=[16, 1]))
    hasty = post(body({"parameters": {"timeout": 1}}))
    message = fine_message()
    message.parameters["timeout"].int64_param = 1
    statuses: set[int | str] = set()
    deadline = time.monotonic() + 60
    with unharmed(served, local), ThreadPoolExecutor(8) as pool:
        while not {504, "DEADLINE_EXCEEDED"} <= statuses:
            assert time.monotonic() < deadline
            others = [pool.submit(exchange, served.config.http_port, busy) for _ in range(3)]
            asked = pool.submit(exchange, served.config.http_port, hasty)
            try:
                stub.ModelInfer(message, timeout=20)
            except grpc.RpcError as error:
                statuses.add(error.code().name)
                assert "its own timeout" in error.details()
            answer = asked.result()
            assert answer is not None
            statuses.add(answer.status)
            assert answer.status == 200 or "its own timeout" in answer.error
            for other in others:
                answer = other.result()
                assert answer is not None and answer.status == 200, answer
    assert statuses <= {200, 504, "DEADLINE_EXCEEDED"}
    exposed = get(served.config.metrics_port, "/metrics").body.decode()
    assert re.search(
        r'bertender_door_requests_total{outcome="late",protocol="http"} [1-9]', exposed
    )


@pytest.mark.fault("the client has gone", "its request is not run, and leaves nothing in memory")
@pytest.mark.server
def test_clients_that_vanish_leave_nothing_behind(served: Server, local: Classifier) -> None:
    """They send a full request of long texts, and go: nobody pays for it, and memory is bounded."""
    texts = ["pear " * 6000] * 16
    requests = [
        post(body({"parameters": {"truncate": cut}}, data=texts, shape=[16, 1]))
        for cut in (True, False)
    ]
    with unharmed(served, local):
        before = memory(served)
        for number in range(60):
            with socket.create_connection(("127.0.0.1", served.config.http_port), 20) as connection:
                connection.sendall(requests[number % 2])
        check_answers(served, local)
        assert memory(served) < before + 384 * MB


@pytest.mark.fault("many send the largest requests at once", "some get 503; memory is bounded")
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_memory_holds_while_many_send_the_largest_requests(
    served: Server, local: Classifier, stub: Any, protocol: str
) -> None:
    texts = ["pear " * 6500] * 16
    content = post(body({"parameters": {"truncate": True}}, data=texts, shape=[16, 1]))
    message = fine_message()
    message.raw_input_contents[:] = [joined([text.encode() for text in texts])]
    message.inputs[0].shape[:] = (16, 1)
    message.parameters["truncate"].bool_param = True

    def send(number: int) -> str:
        if protocol == "http":
            answer = exchange(served.config.http_port, content, timeout_s=60)
            return str(answer and answer.status)
        try:
            stub.ModelInfer(message, timeout=60)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "200"

    with unharmed(served, local), ThreadPoolExecutor(128) as callers:
        answers = [callers.submit(send, number) for number in range(512)]
        peak = 0
        while not all(each.done() for each in answers):
            peak = max(peak, memory(served))
            time.sleep(0.1)
        assert {each.result() for each in answers} <= {"200", "503", "UNAVAILABLE"}
        assert peak < 700 * MB, f"{peak / MB:.0f} MB"


STANDS_STILL = {"triton": ("supervisor", "tritonserver", "stub"), "embedded": ("worker",)}


def part_of(server: Server, part: str) -> psutil.Process:
    return next(
        each for each in processes(server) if part in f"{each.name()} {' '.join(each.cmdline())}"
    )


@pytest.mark.fault(
    "a process behind the door hangs", "requests get 502 or 503 until it has started again"
)
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("seconds", [2, 8, 30])
@pytest.mark.parametrize(
    ("kind", "part"), [(kind, part) for kind, parts in STANDS_STILL.items() for part in parts]
)
def test_a_process_that_stands_still(
    onnx_artifact: Artifact, local: Classifier, tmp_path: Path, kind: str, part: str, seconds: int
) -> None:
    """Nobody gets a wrong answer; 502 is for what it had when it was killed."""
    with running(onnx_artifact, tmp_path, server=kind) as server, ThreadPoolExecutor(1) as pool:
        process = part_of(server, part)
        process.send_signal(signal.SIGSTOP)
        asked = pool.submit(exchange, server.config.http_port, post(body()), 60)
        time.sleep(seconds)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
        answer = asked.result(60)
        assert answer is not None and answer.status in (200, 502, 503)
        deadline = time.monotonic() + 30
        while (answer := exchange(server.config.http_port, post(body()))) is not None:
            if answer.status == 200:
                break
            assert answer.status in (502, 503) and time.monotonic() < deadline
            time.sleep(0.2)
        check_answers(server, local)
