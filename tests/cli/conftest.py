"""Artifacts that the commands themselves have made of the toy task, and a fake endpoint."""

from __future__ import annotations

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from tests.cli.fakes import endpoint
from tests.cli.made import QUICK, Made
from tests.front import succeed, write_toy_files
from tests.toy_models import save_classifier

__all__ = ["endpoint", "made"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, task: Task, teacher: Artifact) -> Made:
    made = Made(
        tmp_path_factory.mktemp("made"), write_toy_files(tmp_path_factory.mktemp("a"), task)
    )
    save_classifier(made["theirs"])
    start = ("--teacher", teacher.path, *made.files.flags, *QUICK)
    succeed("finetune", *start, "--out", made["teacher"])
    succeed(
        "distill", "--teacher", made["teacher"], "--layers", "2", *QUICK, "--out", made["student"]
    )
    succeed("export", made["student"], "--out", made["onnx"])
    succeed("quantize", made["onnx"], "--out", made["int8"])
    return made
