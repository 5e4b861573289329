"""Small servers that speak the endpoint's protocols and behave as a test says: no Triton."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bertender.problems.single_label_classification import SINGLE_LABEL
from tests.quiet_server import QuietServer

HANG_S = 1.0
TYPES = {"LABEL": "BYTES", "SCORE": "FP32", "LOGITS": "FP32"}
FULL = "Failed to increase the shared memory pool size for key 'x' to 4194304 bytes."
FAILURES = {
    "reject": (503, b'{"error": "Exceeds maximum queue size"}'),
    "full": (500, json.dumps({"error": FULL}).encode()),
}
REFUSALS = {
    "refuse": "no such input",
    **{f"refuse row {row}": f"TEXT row {row} has 9 bytes, allowed 8." for row in range(2)},
}
CLOSED_BY_GRPCIO = {"close": "Socket closed", "reset": "recvmsg:Connection reset by peer"}
CONFIG: dict[str, Any] = {
    "name": "classifier",
    "max_batch_size": 2,
    "input": [{"name": "TEXT"}],
    "parameters": {
        name: {"string_value": value}
        for name, value in {"problem_type": SINGLE_LABEL.name, "digest": "toy"}.items()
    },
}


@dataclass
class Script:
    """What happens to requests: "ok" where nothing else is listed."""

    steps: list[str] = field(default_factory=list)
    asked: int = 0
    """Requests to classify that arrived."""
    connections: set[object] = field(default_factory=set)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Of each request to classify, their names in lower case."""

    def step(self) -> str:
        self.asked += 1
        return self.steps.pop(0) if self.steps else "ok"


def refusal(step: str) -> str:
    return REFUSALS.get(step, REFUSALS["refuse"])


def outputs(texts: list[bytes]) -> dict[str, np.ndarray]:
    """The label is the text's first word."""
    logits = [[float(len(text)), 0.0] for text in texts]
    return {
        "LABEL": np.array([[text.split()[0]] for text in texts], np.object_),
        "SCORE": np.full((len(texts), 1), 0.5, np.float32),
        "LOGITS": np.array(logits, np.float32),
    }


def encrypt(server: HTTPServer, tls: tuple[Path, Path] | None) -> None:
    """Let a server speak TLS, to clients that show its own certificate."""
    if tls is None:
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls[0])
    context.load_cert_chain(*tls)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )


def drip(file: BinaryIO, content: bytes) -> None:
    with suppress(ConnectionError):
        for byte in content:
            file.write(bytes([byte]))
            time.sleep(0.05)


@contextmanager
def http_server(
    script: Script, port: int = 0, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            script.connections.add(self.client_address)
            self.send(200, json.dumps(CONFIG).encode())

        def do_POST(self) -> None:
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            script.connections.add(self.client_address)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            step = script.step()
            if step == "hang":
                time.sleep(HANG_S)
            if step == "reset":
                linger = struct.pack("ii", 1, 0)  # which makes the close a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if step in ("close", "reset"):
                self.close_connection = True
            elif step in ("ok", "last", "drip"):
                self.send(200, *response(texts_of(body, self.headers)), drips=step == "drip")
                self.close_connection = step == "last"
            else:
                refused = 400, json.dumps({"error": refusal(step)}).encode()
                self.send(*FAILURES.get(step, refused))

        def send(self, code: int, head: bytes, rest: bytes = b"", drips: bool = False) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(head + rest)))
            if rest:
                self.send_header("Inference-Header-Content-Length", str(len(head)))
            self.end_headers()
            drip(self.wfile, head + rest) if drips else self.wfile.write(head + rest)

        def log_message(self, *arguments: object) -> None: ...

    server = QuietServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    encrypt(server, tls)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http{'s' * bool(tls)}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def texts_of(body: bytes, headers: Mapping[str, str]) -> list[bytes]:
    """The texts of a request: a length of four bytes before each."""
    return unpacked(body[int(headers["Inference-Header-Content-Length"]) :])


def unpacked(content: bytes) -> list[bytes]:
    texts = []
    while content:
        size = int.from_bytes(content[:4], "little")
        texts.append(content[4 : 4 + size])
        content = content[4 + size :]
    return texts


def packed(value: np.ndarray) -> bytes:
    """A tensor as both protocols send it."""
    if value.dtype != np.object_:
        return value.tobytes()
    return b"".join(len(each).to_bytes(4, "little") + each for each in value.flat)


def response(texts: list[bytes]) -> tuple[bytes, bytes]:
    """The JSON of a response, and the tensors after it."""
    tensors = outputs(texts)
    described = [
        {
            "name": name,
            "datatype": TYPES[name],
            "shape": list(value.shape),
            "parameters": {"binary_data_size": len(packed(value))},
        }
        for name, value in tensors.items()
    ]
    header = {"model_name": "classifier", "model_version": "1", "outputs": described}
    return json.dumps(header).encode(), b"".join(map(packed, tensors.values()))


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, script: Script) -> None:
        self.script = script

    def ModelConfig(self, request: object, context: object) -> object:  # noqa: N802
        return ParseDict({"config": CONFIG}, service_pb2.ModelConfigResponse())

    def ModelInfer(self, request, context):  # type: ignore[no-untyped-def] # noqa: N802
        self.script.connections.add(context.peer())
        self.script.headers.append(dict(context.invocation_metadata()))
        step = self.script.step()
        if step == "reject":
            context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
        if step == "full":
            context.abort(grpc.StatusCode.INTERNAL, FULL)
        if step in CLOSED_BY_GRPCIO:
            context.abort(grpc.StatusCode.UNAVAILABLE, CLOSED_BY_GRPCIO[step])
        if step == "hang":
            time.sleep(HANG_S)
        if step == "hang" or step in REFUSALS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, refusal(step))
        answer = service_pb2.ModelInferResponse(model_name="classifier")
        for name, value in outputs(unpacked(request.raw_input_contents[0])).items():
            answer.outputs.add(name=name, datatype=TYPES[name], shape=value.shape)
            answer.raw_output_contents.append(packed(value))
        return answer


@contextmanager
def grpc_server(
    script: Script, port: int = 0, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(script), server)
    place = f"127.0.0.1:{port}"
    if tls:
        certificate, key = (file.read_bytes() for file in tls)
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=certificate, require_client_auth=True
        )
        port = server.add_secure_port(place, credentials)
    else:
        port = server.add_insecure_port(place)
    server.start()
    try:
        yield f"grpc{'s' * bool(tls)}://127.0.0.1:{port}"
    finally:
        server.stop(None)


SERVERS: dict[str, Callable[..., AbstractContextManager[str]]] = {
    "http": http_server,
    "grpc": grpc_server,
}
