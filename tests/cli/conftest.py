"""Artifacts that the commands themselves have made of the toy task, and a fake endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from tests.cli.fakes import endpoint
from tests.cli.made import QUICK, Made
from tests.conftest import Once
from tests.front import ToyFiles, succeed, write_toy_files
from tests.toy_models import save_classifier

__all__ = ["endpoint", "made"]


@pytest.fixture(scope="session")
def made(once: Once, task: Task, teacher: Artifact) -> Made:
    def in_folder(folder: Path) -> Made:
        return Made(folder / "made", ToyFiles.of(folder / "a"))

    def fill(folder: Path) -> None:
        (folder / "a").mkdir()
        write_toy_files(folder / "a", task)
        made = in_folder(folder)
        save_classifier(made["theirs"])
        start = ("--teacher", teacher.path, *made.files.flags, *QUICK)
        succeed("finetune", *start, "--out", made["teacher"])
        distilled = ("--teacher", made["teacher"], "--layers", "2", *QUICK)
        succeed("distill", *distilled, "--out", made["student"])
        succeed("export", made["student"], "--out", made["onnx"])
        succeed("quantize", made["onnx"], "--out", made["int8"])

    return in_folder(once("made-by-commands", fill))
