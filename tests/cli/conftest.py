"""Artifacts that the commands themselves have made of the toy task, and a fake endpoint."""

from __future__ import annotations

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from serve import classify_command
from tests.cli.fakes import FakeEndpoint
from tests.cli.made import QUICK, Made
from tests.front import succeed, write_toy_files


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


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> type[FakeEndpoint]:
    """A fake endpoint in place of the one that `bertender classify` asks."""

    monkeypatch.setattr(FakeEndpoint, "asked", [])
    monkeypatch.setattr(FakeEndpoint, "urls", [])
    monkeypatch.setattr(FakeEndpoint, "settings", [])
    monkeypatch.setattr(classify_command, "AsyncEndpoint", FakeEndpoint)
    return FakeEndpoint
