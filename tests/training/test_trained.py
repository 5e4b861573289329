"""The work directory of a run: its checkpoints, and when they are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.build_once import work_directory
from bertender.core.errors import ArtifactError
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig


class JudgedConfig(TrainingConfig):
    judging: ClassVar[frozenset[str]] = frozenset({"max_drop"})

    max_drop: float = 0.0


def train_notes(out: Path, task: Task, config: TrainingConfig, *identity: str) -> Artifact:
    """Leave notes in the work directory, and write them as a stage writes its model."""
    with work_directory(out, "noting", config.shaping(), *identity) as work:
        notes = work / "notes"
        notes.write_text(notes.read_text() + "!" if notes.exists() else "new")
        if getattr(config, "max_drop", 1.0) == 0.0:
            raise RuntimeError("refused")
        made: dict[str, Any] = {"kind": "torch", "family": "notes", "task": task.record()}
        with new_artifact(out, **made, stage="noting", config=config, seed=config.seed) as draft:
            (draft.directory / "notes").write_text(notes.read_text())
    return Artifact.load(out)


def test_what_was_trained_is_written_and_loaded_and_its_checkpoints_go(
    task: Task, tmp_path: Path
) -> None:
    made = train_notes(tmp_path / "out", task, TrainingConfig(seed=5), "a")
    assert made.card.stage == "noting" and made.card.seed == 5
    assert (made.path / "notes").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("config", "identity", "notes"),
    [
        (JudgedConfig(max_drop=1.0), "a", "new!"),
        (JudgedConfig(max_drop=1.0, checkpoint_steps=7), "a", "new!"),
        (JudgedConfig(max_drop=1.0, epochs=7), "a", "new"),
        (JudgedConfig(max_drop=1.0), "b", "new"),
    ],
    ids=["another judgement", "other checkpoints", "another setting", "other texts"],
)
def test_a_refused_run_goes_on_only_where_nothing_that_shapes_it_has_changed(
    config: JudgedConfig, identity: str, notes: str, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="refused"):
        train_notes(tmp_path / "out", task, JudgedConfig(), "a")
    assert not (tmp_path / "out").exists()
    made = train_notes(tmp_path / "out", task, config, identity)
    assert (made.path / "notes").read_text() == notes


def test_nothing_is_trained_for_what_cannot_be_written(task: Task, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("mine")

    with (
        pytest.raises(ArtifactError, match="is not an artifact"),
        work_directory(tmp_path / "thesis", "noting"),
    ):
        pytest.fail("it trained")
