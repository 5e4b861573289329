"""Attacks that were reported of other servers: an error for who sends them, and memory as before.

The bounds on memory are of what Python allocates in this process, the door and the clients in it.
"""

from __future__ import annotations

import gc
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serve.door.requests import most_body_bytes
from serve.wire import joined
from tests.serve.door.fake_engine import BUSY, RunningDoor, model_of, running_door
from tests.serve.door.raw_http import HEAD, body, exchange, post, tensor

MB = 2**20
DEEP = 100_000
MANY = 500_000
GZIP_HEAD = gzip.compress(b"")[:10]


def nested(content: str) -> bytes:
    """Return a body whose field "data" is some other JSON."""
    return body(data=0).replace(b'"data": 0', b'"data": ' + content.encode())


def gzip_bomb() -> bytes:
    """Return 256 MB of spaces in 256 KB."""
    packer = zlib.compressobj(9, wbits=31, strategy=zlib.Z_RLE)
    return b"".join([*(packer.compress(b" " * MB) for _ in range(256)), packer.flush()])


def endless_gzip(start: bytes, more: bytes) -> bytes:
    """Return a body that begins with `start`, and goes on with 32 MB of `more`."""
    parts = (start, *[more * (MB // len(more))] * 32)
    head = f"{HEAD}Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def chunks(count: int) -> bytes:
    return f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\n \r\n" * count


PARAMETERS = {f"p{number}": number for number in range(40_000)}
CLASSIFICATION = {"outputs": [{"name": "LABEL", "parameters": {"classification": 1}}]}

HTTP_ATTACKS: Mapping[str, tuple[bytes | Callable[[], bytes], int]] = {
    "classification parameter": (post(body(CLASSIFICATION)), 400),
    "shape that wraps in 32 bits": (post(body(shape=[2**32 + 1, 1])), 400),
    "shape that wraps in 64 bits": (post(body(shape=[2**64 + 1, 1])), 400),
    "shape whose product wraps": (post(body(shape=[2**63, 2])), 400),
    "shape below zero": (post(body(shape=[-1, -1])), 400),
    "shape of a trillion": (post(body(shape=[10**12, 1])), 400),
    "shape of a million dimensions": (post(body(shape=[1] * MANY)), 400),
    "FP64 of 130 million": (post(body(datatype="FP64", shape=[130_000_000, 1])), 400),
    "40,000 parameters": (post(body({"parameters": PARAMETERS})), 400),
    "40,000 parameters of an input": (post(body(parameters=PARAMETERS)), 400),
    "33 parameters": (post(body({"parameters": {f"p{n}": n for n in range(33)}})), 400),
    "gzip bomb": (lambda: post(gzip_bomb(), "Content-Encoding: gzip"), 413),
    "empty blocks of gzip": (lambda: endless_gzip(GZIP_HEAD, b"\0\0\0\xff\xff"), 413),
    "bytes behind gzip": (lambda: endless_gzip(gzip.compress(body()), b" "), 400),
    "deep JSON": (post(b'{"inputs":' * DEEP), 400),
    "deep JSON as data": (post(nested("[" * DEEP + "]" * DEEP)), 400),
    "deep JSON as data, just in reach": (post(nested("[" * 900 + "]" * 900)), 400),
    "deep JSON where nobody reads": (
        post(b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"," + body()[1:]),
        400,
    ),
    "texts by the million": (post(nested("[" + '"",' * MANY + '""]')), 400),
    "lists by the million": (post(nested("[" + "[]," * MANY + "[]]")), 400),
    "numbers by the million": (post(nested("[" + "1," * MANY + "1]")), 400),
    "inputs by the thousand": (
        post(json.dumps({"inputs": [tensor(data=[])] * 20_000}).encode()),
        400,
    ),
    "outputs by the thousand": (post(body({"outputs": [{"name": "LABEL"}] * 50_000})), 400),
    "line feed in the id": (post(body({"id": "one\ntwo"})), 400),
    "escape sequence in the id": (post(body({"id": "\x1b[2J"})), 400),
    "long id": (post(body({"id": "a" * 257})), 400),
    "lone surrogate as an escape": (post(body(data=["\ud800"])), 400),
    "lone surrogate as bytes": (post(nested('["_"]').replace(b"_", b"\xed\xa0\x80")), 400),
    "invalid UTF-8": (post(nested('["_"]').replace(b"_", b"\xff")), 400),
    "shared memory": (post(body(data=[], parameters={"shared_memory_region": "a"})), 400),
    "binary data beyond the body": (
        post(
            json.dumps({"inputs": [tensor(parameters={"binary_data_size": 2**31})]}).encode(),
            "Inference-Header-Content-Length: 20",
        ),
        400,
    ),
    "JSON header beyond the body": (post(body(), "Inference-Header-Content-Length: 9999999"), 400),
    "JSON header below zero": (post(body(), "Inference-Header-Content-Length: -1"), 400),
    "NaN as a timeout": (post(body({"parameters": {"timeout": 1e308}})), 400),
    "body of a terabyte": (f"{HEAD}Content-Length: {2**40}\r\n\r\n".encode(), 413),
    "chunks by the million": (chunks(2 * MB), 413),
    "endless head": (f"{HEAD}X: {'a' * MB}".encode(), 431),
    "heads by the thousand": (f"{HEAD}{'X: a' * 10_000}\r\n\r\n".encode(), 431),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
}
"""What is large is a function: every process that collects tests reads this table."""


def made(attack: Any) -> Any:
    return attack() if callable(attack) else attack


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    with running_door() as door:
        yield door


@pytest.mark.parametrize("name", HTTP_ATTACKS)
def test_http(name: str, door: RunningDoor) -> None:
    attack, status = HTTP_ATTACKS[name]
    content = made(attack)
    tracemalloc.start()
    try:
        started = time.monotonic()
        answer = exchange(door.http_port, content)
        seconds = time.monotonic() - started
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer is not None and answer.status == status, answer
    assert answer.error and len(answer.body) < 1024
    assert peak < 3 * most_body_bytes(model_of(), is_json=True), f"{peak / MB:.1f} MB"
    assert seconds < 20
    assert not door.engine.requests, "nothing of it reaches the engine"


def infer_request(**changes: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name="classifier", id=changes.pop("id", ""))
    request.inputs.add(**{"name": "TEXT", "datatype": "BYTES", "shape": (1, 1), **changes})
    request.raw_input_contents.append(b"\4\0\0\0plum")
    return request


def with_parameters(count: int) -> Any:
    request = infer_request()
    for number in range(count):
        request.parameters[f"p{number}"].int64_param = number
    return request


def classified() -> Any:
    request = infer_request()
    output = request.outputs.add(name="LABEL")
    output.parameters["classification"].int64_param = 1
    return request


def with_data(*data: bytes, **changes: Any) -> Any:
    request = infer_request(**changes)
    request.raw_input_contents[:] = data
    return request


GRPC_ATTACKS: Mapping[str, tuple[Any | Callable[[], Any], str]] = {
    "classification parameter": (classified(), "INVALID_ARGUMENT"),
    "shape that wraps in 32 bits": (infer_request(shape=(2**32 + 1, 1)), "INVALID_ARGUMENT"),
    "shape whose product wraps": (infer_request(shape=(2**62, 4)), "INVALID_ARGUMENT"),
    "shape below zero": (infer_request(shape=(-1, -1)), "INVALID_ARGUMENT"),
    "shape of a trillion": (infer_request(shape=(10**12, 1)), "INVALID_ARGUMENT"),
    "FP64 of 130 million": (
        infer_request(datatype="FP64", shape=(130_000_000, 1)),
        "INVALID_ARGUMENT",
    ),
    "40,000 parameters": (with_parameters(40_000), "INVALID_ARGUMENT"),
    "line feed in the id": (infer_request(id="one\ntwo"), "INVALID_ARGUMENT"),
    "lone surrogate": (with_data(b"\3\0\0\0\xed\xa0\x80"), "INVALID_ARGUMENT"),
    "length beyond the data": (with_data(b"\xff\xff\xff\xffplum"), "INVALID_ARGUMENT"),
    "length of half a word": (with_data(b"\1\0"), "INVALID_ARGUMENT"),
    "values by the million": (with_data(bytes(4 * 400_000)), "INVALID_ARGUMENT"),
    "more raw data than inputs": (with_data(*[b"\4\0\0\0plum"] * 1000), "INVALID_ARGUMENT"),
    "message of 192 MB": (lambda: with_data(bytes(192 * MB)), "RESOURCE_EXHAUSTED"),
}


@pytest.mark.parametrize("name", GRPC_ATTACKS)
def test_grpc(name: str, door: RunningDoor) -> None:
    attack, status = GRPC_ATTACKS[name]
    request = made(attack)
    unlimited = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}", unlimited) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request, timeout=20)
    assert refused.value.code().name == status
    assert not door.engine.requests, "nothing of it reaches the engine"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_refused_request_leaves_nothing_in_memory(protocol: str) -> None:
    """Also before Python looks for cycles, which may be long after."""
    texts = [BUSY, *["pear " * 6500] * 63]
    content = post(body(data=texts, shape=[64, 1]))
    data = joined([text.encode() for text in texts])

    def send(door: RunningDoor) -> None:
        if protocol == "http":
            answer = exchange(door.http_port, content)
            assert answer is not None and answer.status == 503
        else:
            with grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                with pytest.raises(grpc.RpcError, match="the queue is full"):
                    stub.ModelInfer(with_data(data, shape=(64, 1)), timeout=20)
        door.engine.requests.clear()

    with running_door() as door:
        send(door)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(8):
                send(door)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < len(data), f"{held / MB:.1f} MB"
