"""A worker process that runs one served model without Triton, connected to the door by a socket.

    python -m serve.backend.worker DESCRIPTOR

Messages in both directions are frames: the number of the request, the lengths of a JSON object and
of the tensors, the object, and the bytes of the tensors that it describes. The first frame says
what to open; the first reply says that the worker is ready, or why it is not. Frames with number 0
are about the process itself. The worker ends when the socket closes.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from bertender.core.errors import BertenderError
from serve.backend.fair_queue import Refusal, Tensors
from serve.backend.opening import open_served_model
from serve.config import BackendParameters
from serve.wire import Tensor, Wishes

HEAD = struct.Struct("<qII")
"""Number of the request, bytes of the JSON object, bytes of the tensors."""
ITSELF = 0
METRICS_S = 1.0


def frame(number: int, content: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> bytes:
    """Return a message as bytes."""
    described = [(each.name, each.datatype, each.shape, len(each.data)) for each in tensors]
    text = json.dumps({**content, "tensors": described}).encode()
    data = b"".join(each.data for each in tensors)
    return HEAD.pack(number, len(text), len(data)) + text + data


def content_of(text: bytes, data: bytes) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """Return the JSON object of a message, and its tensors."""
    content, place, tensors = json.loads(text), 0, []
    for name, datatype, shape, size in content.pop("tensors"):
        tensors.append(Tensor(name, datatype, tuple(shape), data[place : place + size]))
        place += size
    return content, tuple(tensors)


class Worker:
    """The worker's side of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.incoming = connection.makefile("rb")
        self.lock = threading.Lock()

    def run(self) -> None:
        """Open the model, and answer requests until the socket closes."""
        opening = self._receive()
        if opening is None:
            return
        _, settings, _ = opening
        try:
            self.model = open_served_model(
                Path(settings["folder"]),
                BackendParameters.parse(settings["parameters"]),
                settings["max_batch_size"],
            )
        except BertenderError as error:
            self._send(ITSELF, {"error": str(error)})
            return
        self._send(ITSELF, {"ready": True})
        threading.Thread(target=self._report, daemon=True).start()
        while (message := self._receive()) is not None:
            number, content, tensors = message
            wishes = Wishes(**content, number=number)
            respond = partial(self._respond, number)
            self.model.ask([each.array() for each in tensors], wishes, respond)

    def _respond(self, number: int, response: Tensors | Refusal) -> None:
        if isinstance(response, Refusal):
            self._send(number, {"code": response.code, "reason": response.reason})
        else:
            tensors = [Tensor.of_array(name, array) for name, array in response.items()]
            self._send(number, {}, tensors)

    def _report(self) -> None:
        """Send the counts once a second."""
        stopped = threading.Event()
        while not stopped.wait(METRICS_S):
            counted = self.model.tally.take(self.model.queue.texts)
            if counted:
                self._send(ITSELF, {"counted": [[*key, amount] for key, amount in counted.items()]})

    def _send(
        self, number: int, content: Mapping[str, Any], tensors: Sequence[Tensor] = ()
    ) -> None:
        with self.lock:
            try:
                self.connection.sendall(frame(number, content, tensors))
            except OSError:  # the door has gone
                os._exit(0)

    def _receive(self) -> tuple[int, dict[str, Any], tuple[Tensor, ...]] | None:
        if len(head := self.incoming.read(HEAD.size)) < HEAD.size:
            return None
        number, text_bytes, data_bytes = HEAD.unpack(head)
        text, data = self.incoming.read(text_bytes), self.incoming.read(data_bytes)
        if len(text) + len(data) < text_bytes + data_bytes:
            return None
        return (number, *content_of(text, data))


def main(descriptor: int) -> None:
    """Run a worker on an inherited socket."""
    Worker(socket.socket(fileno=descriptor)).run()
    with suppress(OSError):  # the disk of the log is full
        sys.stderr.flush()
    os._exit(0)  # without waiting for lanes in the middle of a run


if __name__ == "__main__":
    main(int(sys.argv[1]))
