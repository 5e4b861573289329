"""Artifacts that the commands themselves have made of the toy task, and a fake endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from bertender.text.batch import Example
from serve import classify_command
from serve.client import Answer
from tests.front import ToyFiles, succeed, write_toy_files

QUICK = ("--epochs", "6", "--batch-size", "16", "--learning-rate", "3e-3", "--max-length", "32")


@dataclass(frozen=True)
class Made:
    """A folder of artifacts that the commands have made, each from the one before."""

    folder: Path
    files: ToyFiles

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, task: Task, teacher: Artifact) -> Made:
    made = Made(
        tmp_path_factory.mktemp("made"), write_toy_files(tmp_path_factory.mktemp("a"), task)
    )
    start = ("--teacher", teacher.path, *made.files.flags, *QUICK)
    succeed("finetune", *start, "--out", made["teacher"])
    succeed(
        "distill", "--teacher", made["teacher"], "--layers", "2", *QUICK, "--out", made["student"]
    )
    succeed("export", made["student"], "--out", made["onnx"])
    succeed("quantize", made["onnx"], "--out", made["int8"])
    return made


class FakeEndpoint:
    """Answers with the first word as the label; what it was asked stays in `asked`."""

    text_columns = 1
    asked: ClassVar[list[Example]] = []
    urls: ClassVar[list[str]] = []

    def __init__(self, url: str) -> None:
        self.urls.append(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def classify(self, examples: Sequence[Example]) -> list[Answer]:
        self.asked.extend(examples)
        return [Answer(label=e[0].split()[0], score=0.5, logits=(0.0, 1.0)) for e in examples]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> type[FakeEndpoint]:
    """A fake endpoint in place of the one that `bertender classify` asks."""

    monkeypatch.setattr(FakeEndpoint, "asked", [])
    monkeypatch.setattr(FakeEndpoint, "urls", [])
    monkeypatch.setattr(classify_command, "Endpoint", FakeEndpoint)
    return FakeEndpoint
