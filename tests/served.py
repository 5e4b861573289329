"""A real Triton on loopback, and the answers that it must give."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bertender.models.classifier import Classifier
from bertender.text.batch import Example
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.repository import Models, write_repository
from serve.server.server import Server

ANY_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
ANY_PORT_OPTIONS = tuple(f"--{name.replace('_', '-')}={port}" for name, port in ANY_PORTS.items())
SERVE = (sys.executable, "-m", "bertender.cli.main", "serve")
PORTS = ServeConfig(**ANY_PORTS, threads_per_instance=1)
BY_DEFAULT = {name: port for name, port in ANY_PORTS.items() if name != "grpc_port"}
"""Ports of a server that does not listen for gRPC."""


def until(is_true: Callable[[], bool], timeout_s: float = 20) -> None:
    """Wait for something that another thread or process brings about."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def served(models: Models, folder: Path, **settings: Any) -> Iterator[Server]:
    config = PORTS.model_copy(update=settings)
    with Server(write_repository(models, folder / "models", config), config) as server:
        yield server


def ask_one_by_one(url: str, examples: Sequence[Example]) -> tuple[list[str], np.ndarray]:
    with Endpoint(url) as endpoint:
        answers = [endpoint.classify([example])[0] for example in examples]
    return [answer.label for answer in answers], np.array([answer.logits for answer in answers])


def one_by_one(local: Classifier, examples: Sequence[Example]) -> tuple[list[str], np.ndarray]:
    logits = np.concatenate([local.logits([example]) for example in examples])
    return [local.labels[best] for best in logits.argmax(axis=1)], logits
