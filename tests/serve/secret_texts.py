"""Requests, right ones and wrong ones, whose text must be in no log; loads no model library."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.serve.routes import ask_http

if TYPE_CHECKING:
    from serve.server.server import Server

__all__ = ["SECRET", "text_statuses"]

SECRET = "MARKED8c1f"
INFER = "/v2/models/classifier/infer"


def request_of(data: Any, name: str = "TEXT", **changes: Any) -> bytes:
    tensor = {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": data, **changes}
    return json.dumps({"inputs": [tensor]}, ensure_ascii=False).encode()


BODIES: Mapping[str, tuple[str, bytes, Mapping[str, str]]] = {
    "a text": (INFER, request_of([SECRET]), {}),
    "emoji and right to left": (INFER, request_of([f"🍐 {SECRET} שלום"]), {}),
    "a text longer than the model takes": (INFER, request_of([f"{SECRET} " * 999]), {}),
    "a megabyte": (INFER, request_of([SECRET * 2**17]), {}),
    "NUL bytes": (INFER, request_of([f"\0{SECRET}\0"]), {}),
    "bytes that are no UTF-8": (INFER, request_of([SECRET]).replace(b"8c", b"\xff\xfe"), {}),
    "JSON that is not": (INFER, request_of([SECRET])[:-2], {}),
    "deep JSON": (INFER, b"[" * 60 + SECRET.encode() + b"]" * 60, {}),
    "an input of another name": (INFER, request_of([SECRET], name=SECRET), {}),
    "another type": (INFER, request_of([SECRET], datatype="FP32"), {}),
    "another shape": (INFER, request_of([SECRET], shape=[1, 2]), {}),
    "no text at all": (INFER, request_of([SECRET], shape=[0, 1]), {}),
    "a batch over the limit": (INFER, request_of([SECRET] * 999, shape=[999, 1]), {}),
    "a pair": (INFER, request_of([SECRET] * 2, shape=[2]), {}),
    "another model": (f"/v2/models/{SECRET}/infer", request_of([SECRET]), {}),
    "a parameter": (f"{INFER}?{SECRET}={SECRET}", request_of([SECRET]), {SECRET: SECRET}),
    "a compressed body": (
        INFER,
        gzip.compress(request_of([SECRET])),
        {"Content-Encoding": "gzip"},
    ),
    "a compressed body that is not": (INFER, request_of([SECRET]), {"Content-Encoding": "gzip"}),
    "a header without its JSON": (
        INFER,
        SECRET.encode() * 9,
        {"Inference-Header-Content-Length": "9"},
    ),
}
"""Path, body and headers of requests over HTTP, right ones and wrong ones."""

TENSORS = {
    "a text": [[SECRET.encode()]],
    "bytes that are no UTF-8": [[b"\xff\xfe" + SECRET.encode()]],
    "NUL bytes": [[b"\0" + SECRET.encode()]],
    "a batch over the limit": [[SECRET.encode()]] * 999,
    "a wrong shape": [[SECRET.encode()] * 3],
}
"""Texts over gRPC."""


def text_statuses(server: Server) -> Iterator[int]:
    for path, body, headers in BODIES.values():
        yield ask_http(server.config.http_port, "POST", path, body, headers)[0]
    with tritonclient.grpc.InferenceServerClient(server.grpc_url[7:]) as client:
        for texts in TENSORS.values():
            array = np.array(texts, dtype=np.object_)
            tensor = tritonclient.grpc.InferInput("TEXT", array.shape, "BYTES")
            tensor.set_data_from_numpy(array)
            try:
                client.infer("classifier", [tensor])
                yield 200
            except InferenceServerException:
                yield 400
