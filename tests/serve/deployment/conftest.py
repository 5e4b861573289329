"""Artifacts that answer differently, and servers that they are deployed to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch

from bertender.core.artifact import (
    Artifact,
    GoldenTexts,
    copy_companions,
    read_golden,
    write_golden,
)
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.text.batch import Example
from export.config import ExportConfig
from export.exporter import export
from serve.client.endpoint import Endpoint
from serve.config import DeployConfig, ServeConfig
from serve.repository import Models, write_repository
from serve.server.server import Server
from serve.server.targets import ModelControl, ServerTarget, target_of
from tests.conftest import Once
from tests.served import BY_DEFAULT
from tests.toys import new_toy, tiny_bert, tiny_tokenizer, write_model

ASKED: Example = ("apple pear saw number 7",)
"""What clients ask again and again."""


def exported(factor: float, task: Task, folder: Path) -> Artifact:
    """An export of a model whose logits are its head's times a factor."""
    tokenizer = tiny_tokenizer()
    model = tiny_bert(len(tokenizer), task.labels)
    with torch.no_grad():
        for weights in model.classifier.parameters():
            weights.mul_(factor)
    source = write_model(model, tokenizer, task, folder / "model")
    return export(source, task, ExportConfig(parity_texts=8), folder / "onnx")


@dataclass(frozen=True)
class Versions:
    """Two artifacts of one task."""

    old: Artifact
    new: Artifact


@pytest.fixture(scope="session")
def versions(once: Once, task: Task) -> Versions:
    old, new = (
        once(f"version-{name}", partial(exported, factor, task))
        for name, factor in (("old", 30.0), ("new", -50.0))
    )
    return Versions(Artifact.load(old / "onnx"), Artifact.load(new / "onnx"))


@pytest.fixture(scope="session")
def of_another_task(once: Once, task: Task) -> Artifact:
    other = Task("colours", ("red", "blue"), *[getattr(task, name) for name in REST])
    return Artifact.load(once("of-another-task", partial(exported, 30.0, other)) / "onnx")


REST = ("metric", "text_columns", "train", "dev")


def changed(
    artifact: Artifact,
    out: Path,
    golden: Callable[[GoldenTexts], GoldenTexts] = lambda golden: golden,
    graph: Callable[[bytes], bytes] = lambda graph: graph,
    most_tokens: int | None = None,
    task_name: str | None = None,
) -> Artifact:
    """A whole artifact, its digests right, that differs from one in what it says or holds."""
    card = artifact.card
    task = card.task if task_name is None else card.task.model_copy(update={"name": task_name})
    with new_toy(out, kind="onnx", family=card.family, task=task, stage="export") as draft:
        copy_companions(artifact, draft.directory)
        if most_tokens is not None:
            path = draft.directory / "tokenizer_config.json"
            settings = json.loads(path.read_text()) | {"model_max_length": most_tokens}
            path.write_text(json.dumps(settings))
        model = (artifact.path / "model.onnx").read_bytes()
        (draft.directory / "model.onnx").write_bytes(graph(model))
        write_golden(golden(read_golden(artifact)), draft.directory)
        draft.findings = card.findings
    return Artifact.load(out)


def logits_of(artifact: Artifact) -> np.ndarray:
    return open_classifier(artifact, threads=1).logits([ASKED])[0]


@dataclass
class Deployable:
    """A running server with a token."""

    server: Server
    token_file: Path

    @property
    def config(self) -> DeployConfig:
        return DeployConfig(admin_token_file=self.token_file, timeout_s=60)

    @property
    def control(self) -> ModelControl:
        target = target_of(self.server.http_url, self.config)
        assert isinstance(target, ServerTarget)
        return target.control

    def loaded(self) -> dict[str, set[int]]:
        """The versions that take memory, by model."""
        names = ("classifier", "classifier-candidate")
        return {name: found for name in names if (found := self.control.versions(name))}

    def answer(self, model: str = "classifier") -> np.ndarray:
        with Endpoint(self.server.http_url, model=model, retries=0) as endpoint:
            return endpoint.logits([ASKED])[0]


@contextmanager
def deployable(models: Models, folder: Path, **settings: object) -> Iterator[Deployable]:
    """Serve an artifact, or several by name, so that others can be deployed in their place."""
    files = {"admin_token_file": folder / "token", "log_file": folder / "server.log"}
    config = ServeConfig.parse({**BY_DEFAULT, "threads_per_instance": 1, **files, **settings})
    with Server(write_repository(models, folder / "models", config), config) as server:
        yield Deployable(server, folder / "token")


@pytest.fixture(scope="module")
def running(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployable]:
    """A server of the old version, on which tests deploy what is refused."""
    with deployable(versions.old, tmp_path_factory.mktemp("deployable")) as server:
        yield server


class Clients:
    """Threads that ask one text again and again, and note every answer and every error."""

    def __init__(self, urls: list[str], pause_s: float) -> None:
        self.pause_s = pause_s
        self.answers: list[tuple[float, ...]] = []
        self.errors: list[str] = []
        self.longest_s = 0.0
        self.stop = Event()
        self.threads = [Thread(target=self._ask, args=(url,)) for url in urls]

    def _ask(self, url: str) -> None:
        try:
            with Endpoint(url, retries=0, timeout_s=60) as endpoint:
                while not self.stop.wait(self.pause_s):
                    self._ask_once(endpoint)
        except Exception as error:  # it cannot even connect
            self.errors.append(repr(error))

    def _ask_once(self, endpoint: Endpoint) -> None:
        started = time.monotonic()
        try:
            (answer,) = endpoint.classify([ASKED])
        except Exception as error:  # whatever it is, a request was dropped
            self.errors.append(repr(error))
            return
        self.longest_s = max(self.longest_s, time.monotonic() - started)
        self.answers.append(tuple(np.ravel(answer.logits).tolist()))


@contextmanager
def asking(*urls: str, pause_s: float = 0.0) -> Iterator[Clients]:
    """Ask servers inside the block; no request may be without an answer."""
    clients = Clients(list(urls), pause_s)
    for thread in clients.threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.stop.set()
        for thread in clients.threads:
            thread.join(90)
    assert clients.errors == []


def answered_by(answers: list[tuple[float, ...]], *artifacts: Artifact) -> list[bool]:
    """Whether each of some artifacts gave any of the answers; none may be of another."""
    known = np.array([logits_of(each) for each in artifacts])  # (artifacts, labels)
    found = np.array(answers)
    distances = np.abs(found[:, None] - known[None]).max(axis=2)
    assert (distances.min(axis=1) < 1e-4).all(), "an answer is of none of them"
    return [bool((distances.argmin(axis=1) == row).any()) for row in range(len(artifacts))]


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of all files, but for what Python caches."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if "__pycache__" not in path.parts
    }
