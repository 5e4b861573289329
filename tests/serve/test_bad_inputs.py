"""Bad inputs over both protocols: an error for the offender, and answers for everybody else."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from serve.client.protocols import PROTOCOLS
from serve.server.server import Server
from serve.wire import MODEL_NAME
from tests.serve.marked_model import BATCH, ask_grpc, ask_http

pytestmark = pytest.mark.server

FINE = {"200", "OK"}
CLIENT_ERROR = {
    *("400", "404", "413"),
    *("INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"),
}
SLOWEST_S = 10.0
"""Of a good request meanwhile: generous, because the machine may be busy with other tests."""


def strings(*values: bytes, shape: Sequence[int] | None = None) -> np.ndarray:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array.reshape(shape or (len(values), 1))


@dataclass(frozen=True)
class Offender:
    """The tensors of a request, and the statuses that are right for it."""

    tensors: Mapping[str, np.ndarray]
    answers: set[str] = field(default_factory=lambda: CLIENT_ERROR)
    model: str = MODEL_NAME
    parameters: Mapping[str, Any] = field(default_factory=dict)


def text(*values: bytes, **more: Any) -> Offender:
    return Offender({"TEXT": strings(*values)}, **more)


OFFENDERS: Mapping[str, Offender] = {
    "empty": text(b""),
    "blank": text(b" \t\n"),
    "one of several is blank": text(b"apple", b" "),
    "1 MB": text(b"a" * 2**20),
    "longer than the model's input": text(b"saw " * 500),
    "longer than the model's input, to be cut": text(
        b"saw " * 500, answers=FINE, parameters={"truncate": True}
    ),
    "truncate that is no bool": text(b"saw", parameters={"truncate": "yes"}),
    "invalid UTF-8": text(b"\xff\xfe"),
    "a lone surrogate": text(b"\xed\xa0\x80"),
    "NUL bytes": text(b"the\x00pear"),
    "emoji": text("🍐👩‍🌾".encode(), answers=FINE),
    "right to left": text("שלום, مرحبا".encode(), answers=FINE),
    "wrong dtype": Offender({"TEXT": np.ones((1, 1), np.float32)}),
    "wrong shape": Offender({"TEXT": strings(b"a", b"b", shape=(1, 2))}),
    "no batch axis": Offender({"TEXT": strings(b"a", shape=(1,))}),
    "shape [0,1]": text(),
    "unknown input": Offender({"WORDS": strings(b"a")}),
    "missing input": Offender({}),
    "batch over the limit": text(*[b"a"] * (BATCH + 1)),
    "a pair to a single-text model": Offender({"TEXT": strings(b"a"), "TEXT_PAIR": strings(b"b")}),
    "unknown model": text(b"a", model="nobody"),
}
"""Requests that a client library can send, over either protocol."""

HEAD = f"POST /v2/models/{MODEL_NAME}/infer HTTP/1.1\r\nHost: endpoint\r\n"


def tensor_json(**changes: Any) -> str:
    tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["apple"]}
    return json.dumps({"inputs": [{**tensor, **changes}]})


def post(body: bytes | str, *headers: str) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    lines = "".join(f"{line}\r\n" for line in (f"Content-Length: {len(content)}", *headers))
    return f"{HEAD}{lines}\r\n".encode() + content


def chunked(*chunks: str, end: str = "0\r\n\r\n") -> bytes:
    sent = "".join(f"{len(chunk):x}\r\n{chunk}\r\n" for chunk in chunks)
    return f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{sent}{end}".encode()


NESTED = tensor_json(data=0).replace(": 0", ": " + "[" * 100_000 + '"apple"' + "]" * 100_000)
SILENCE = {""}
ERROR = CLIENT_ERROR | {"500"}
"""Triton reports JSON that it cannot read as 500."""

BODIES: Mapping[str, tuple[bytes, set[str]]] = {
    "empty body": (post(""), ERROR),
    "malformed JSON": (post("{"), ERROR),
    "no JSON": (post("hello"), ERROR),
    "brackets without an end": (post("[" * 100_000), ERROR),
    "deeply nested JSON": (post(NESTED), FINE | ERROR),
    "numbers instead of strings": (post(tensor_json(data=[5])), ERROR),
    "an escape of half a character": (post(tensor_json(data=["\ud800"])), ERROR),
    "a shape below zero": (post(tensor_json(shape=[-1, 1])), ERROR),
    # Triton 2.51 counts rows in 32 bits: none here, and it hands over the one text that is there
    "an enormous shape": (post(tensor_json(shape=[2**62, 1])), FINE | ERROR),
    "more rows than data": (post(tensor_json(shape=[2, 1])), ERROR),
    "truncated body": (f"{HEAD}Content-Length: 500\r\n\r\n{tensor_json()}".encode(), SILENCE),
    "truncated chunks": (chunked(tensor_json(), end="ff\r\n{"), SILENCE),
    "chunks": (chunked(*tensor_json()), FINE),
    "a chunk without a size": (chunked(end="what\r\n"), ERROR | SILENCE),
    "a length below zero": (f"{HEAD}Content-Length: -5\r\n\r\n".encode(), ERROR | SILENCE),
    "gzip that is none": (post("nonsense", "Content-Encoding: gzip"), ERROR),
    "gzip bomb": (post(gzip.compress(b" " * 2**26), "Content-Encoding: gzip"), ERROR),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", ERROR | SILENCE),
}
"""Bytes on an HTTP connection that then ends, and the right statuses; "" is no response."""


@dataclass
class Traffic:
    """Good requests, one after the other, and what became of them."""

    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, server: Server) -> None:
        while not self.ended.is_set():
            for ask in (ask_http, ask_grpc):
                answer = ask(server, ["apple"])
                self.seconds.append(answer.seconds)
                if answer.status not in FINE:
                    self.failures.append(answer.content)
            time.sleep(0.05)

    def check(self) -> None:
        """Wait until one more of each protocol is answered; assert that all were."""
        count, deadline = len(self.seconds), time.monotonic() + 2 * SLOWEST_S
        while len(self.seconds) < count + 4:
            assert time.monotonic() < deadline, "good requests are not answered"
            time.sleep(0.02)
        assert self.failures == []
        assert max(self.seconds) < SLOWEST_S


@pytest.fixture(scope="module")
def traffic(marked: Server) -> Iterator[Traffic]:
    traffic = Traffic()
    thread = threading.Thread(target=traffic.send, args=(marked,))
    thread.start()
    yield traffic
    traffic.ended.set()
    thread.join()


MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def status_of(server: Server, protocol: str, offender: Offender) -> str:
    module = MODULES[protocol]
    port = getattr(server.config, f"{protocol}_port")
    inputs = []
    for name, array in offender.tensors.items():
        data_type = "BYTES" if array.dtype == np.object_ else "FP32"
        inputs.append(module.InferInput(name, list(array.shape), data_type))
        inputs[-1].set_data_from_numpy(array)
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    try:
        client.infer(offender.model, inputs, parameters=dict(offender.parameters))
    except InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode.")
    else:
        return "OK"
    finally:
        client.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", OFFENDERS)
def test_an_offender_alone_gets_an_error(
    name: str, protocol: str, marked: Server, traffic: Traffic
) -> None:
    offender = OFFENDERS[name]
    assert status_of(marked, protocol, offender) in offender.answers
    traffic.check()


def exchange(server: Server, content: bytes, closes: bool) -> str:
    """Send bytes, and maybe end; return the status of the response, "" where there is none."""
    address = ("127.0.0.1", server.config.http_port)
    with socket.create_connection(address, timeout=30) as connection:
        try:
            connection.sendall(content)
            if closes:
                connection.shutdown(socket.SHUT_WR)
            line = connection.makefile("rb").readline().decode()
        except ConnectionError:
            return ""
    return line.split()[1] if line else ""


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_an_error_or_silence(name: str, marked: Server, traffic: Traffic) -> None:
    content, answers = BODIES[name]
    assert exchange(marked, content, closes=answers >= SILENCE) in answers
    traffic.check()


@dataclass(frozen=True)
class SlowClient:
    """A request that is sent byte by byte, and a part of the response to it."""

    content: bytes
    response: bytes


HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
"""How a connection of gRPC begins: the preface of HTTP/2, and settings, of which there are none."""
PING = bytes(2) + b"\x08\x06" + bytes(5) + b"are you?"
SLOW_CLIENTS: Mapping[str, SlowClient] = {
    "http": SlowClient(post(tensor_json()), b"HTTP/1.1 200 OK"),
    "grpc": SlowClient(HELLO + PING, b"\x08\x06\x01" + bytes(4) + b"are you?"),
}
SLOW_BYTES = 5
"""Sent a second apart; the rest follows at once."""
IDLE_CLIENTS = 500


def send_and_read(connection: socket.socket, content: bytes, response: bytes) -> None:
    """Send bytes, and read until the response is there."""
    connection.sendall(content)
    received = b""
    while response not in received:
        received += (more := connection.recv(4096))
        assert more, f"the connection was closed after {received!r}"


@pytest.mark.one_path
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_slow_and_idle_clients_delay_nobody(
    marked: Server, traffic: Traffic, protocol: str
) -> None:
    address = ("127.0.0.1", getattr(marked.config, f"{protocol}_port"))
    client = SLOW_CLIENTS[protocol]
    with ExitStack() as stack:
        for _ in range(IDLE_CLIENTS):
            idle = stack.enter_context(socket.create_connection(address, SLOWEST_S))
        slow = stack.enter_context(socket.create_connection(address, SLOWEST_S))
        for byte in client.content[:SLOW_BYTES]:
            slow.sendall(bytes([byte]))
            traffic.check()
            time.sleep(1)
        send_and_read(slow, client.content[SLOW_BYTES:], client.response)
        send_and_read(idle, client.content, client.response)
    traffic.check()
