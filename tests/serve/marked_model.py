"""A served model at whose marked words something happens: what a test needs of a real server."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from bertender.core.artifact import Artifact
from serve.config import ServeConfig
from serve.repository import MODEL_FILE, write_repository
from serve.server.server import Server
from serve.wire import MODEL_NAME
from tests.served import ANY_PORTS

HOLD_S = 0.4
"""Seconds of a run with the word HOLD."""
BEGUN, GO = "begun", "go"
"""Files beside the model: a byte for each run with the word WAIT, and what lets them end."""
BATCH, QUEUE = 4, 8
"""Most texts in a batch, and most that wait, where tests share a server."""

MARKED = (
    MODEL_FILE
    + f"""

import time

import numpy as np


def fail():
    raise RuntimeError("the runtime has a bad day")


class Marked:
    def __init__(self, predictor):
        self.predictor = predictor

    def logits(self, batch):
        texts = " ".join(" ".join(example) for example in batch.examples)
        if "HOLD" in texts:
            time.sleep({HOLD_S})
        if "WAIT" in texts:
            beside = os.path.dirname(__file__)
            with open(os.path.join(beside, "{BEGUN}"), "ab") as begun:
                begun.write(b".")
            ends = time.monotonic() + 60
            while not os.path.exists(os.path.join(beside, "{GO}")) and time.monotonic() < ends:
                time.sleep(0.005)
        if "BREAK" in texts:
            fail()
        if "DIE" in texts:
            os._exit(3)
        logits = self.predictor.logits(batch)
        for row, example in enumerate(batch.examples):
            if "NAN" in example[0]:
                logits[row] = np.nan
        return logits


class TritonPythonModel(TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        classifier = self.model.classifier
        classifier.predictor = Marked(classifier.predictor)
"""
)


@contextmanager
def marked_server(artifact: Artifact, folder: Path, **settings: object) -> Iterator[Server]:
    """Serve an artifact; the words HOLD, BREAK, NAN and DIE do what they say."""
    config = ServeConfig.parse({**ANY_PORTS, "threads_per_instance": 1, **settings})
    repository = write_repository(artifact, folder / "models", config)
    (repository / MODEL_NAME / "1" / "model.py").write_text(MARKED)
    with Server(repository, config) as server:
        yield server


@dataclass(frozen=True)
class Answer:
    """The response to one request."""

    status: str
    """Of HTTP ("200") or gRPC ("OK", "UNAVAILABLE")."""
    content: str
    """The error, or all of a response."""
    seconds: float


Ask = Callable[..., Answer]


def ask_http(
    server: Server,
    texts: Sequence[str],
    parameters: Mapping[str, Any] | None = None,
    timeout_s: float = 20,
) -> Answer:
    """Send one request by plain HTTP, on a connection of its own."""
    tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": list(texts)}
    body = json.dumps({"inputs": [tensor], "parameters": parameters or {}})
    port = server.config.http_port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    started = time.monotonic()
    try:
        connection.request("POST", f"/v2/models/{MODEL_NAME}/infer", body)
        response = connection.getresponse()
        content = response.read().decode()
    finally:
        connection.close()
    return Answer(str(response.status), content, time.monotonic() - started)


def ask_grpc(
    server: Server,
    texts: Sequence[str],
    parameters: Mapping[str, Any] | None = None,
    timeout_s: float = 20,
) -> Answer:
    """Send one request by gRPC."""
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
    client.is_server_live()  # connects
    started = time.monotonic()
    try:
        result = client.infer(
            MODEL_NAME, [tensor], parameters=dict(parameters or {}), client_timeout=timeout_s
        )
        status, content = "OK", str(result.get_response())
    except InferenceServerException as error:
        status, content = str(error.status()).removeprefix("StatusCode."), error.message()
    finally:
        seconds = time.monotonic() - started
        client.close()
    return Answer(status, content, seconds)


ASK: Mapping[str, Ask] = {"http": ask_http, "grpc": ask_grpc}

SAYS = {
    "http": {"fine": "200", "bad": "400", "late": "503", "broken": "500"},
    "grpc": {
        "fine": "OK",
        "bad": "INVALID_ARGUMENT",
        "late": "UNAVAILABLE",
        "broken": "INTERNAL",
    },
}
"""Words of each protocol for a kind of answer."""
