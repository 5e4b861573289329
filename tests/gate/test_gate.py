"""What exporting and quantizing share: an artifact appears only when it is proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.gate.artifacts import new_graph, open_source, require_agreement
from bertender.gate.config import GateConfig
from bertender.tasks.task import Task


def test_a_stage_that_writes_no_graph_leaves_nothing(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config, out = GateConfig(), tmp_path / "out"
    opened = open_source(teacher, task)
    with pytest.raises(ModelError), new_graph(teacher, "export", config, out, "float32") as draft:
        (draft.directory / "half.txt").write_text("half")
        require_agreement(draft, teacher, opened, task, config, name="out", precision="float32")
    assert not any(tmp_path.iterdir())
