"""The tail that exporting and quantizing share: an artifact appears only when it is proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.gate.artifacts import GraphWriter, write_proven
from bertender.gate.config import GateConfig
from bertender.tasks.task import Task


def test_a_writer_that_writes_no_graph_leaves_nothing(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    def write(directory: Path) -> None:
        (directory / "half.txt").write_text("half")

    with pytest.raises(ModelError):
        writer = GraphWriter("export", "float32", write)
        write_proven(teacher, task, GateConfig(), tmp_path / "out", writer)
    assert not any(tmp_path.iterdir())
