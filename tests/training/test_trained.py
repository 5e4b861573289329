"""The one way to a trained artifact: checkpoints, writing, loading, and what starts anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import ArtifactError
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from bertender.training.loop import Writer, trained_artifact


class JudgedConfig(TrainingConfig):
    judging: ClassVar[frozenset[str]] = frozenset({"max_drop"})

    max_drop: float = 0.0


def note_writer(work: Path, task: Task) -> Writer:
    """What writes the notes that training has left in the work directory."""

    def write(out: Path, stage: str, config: TrainingConfig, parent: Artifact | None) -> None:
        made: dict[str, Any] = {"kind": "torch", "family": "notes", "task": task.record()}
        where = {"stage": stage, "config": config, "seed": config.seed, "parent": parent}
        with new_artifact(out, **made, **where) as draft:
            notes = (work / "notes").read_text()
            (draft.directory / "notes").write_text(notes)

    return write


def train_notes(out: Path, task: Task, config: TrainingConfig, *identity: str) -> Artifact:
    def train(work: Path) -> Writer:
        notes = work / "notes"
        notes.write_text(notes.read_text() + "!" if notes.exists() else "new")
        if getattr(config, "max_drop", 1.0) == 0.0:
            raise RuntimeError("refused")
        return note_writer(work, task)

    return trained_artifact(out, "noting", config, train, identity=identity)


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
        (JudgedConfig(max_drop=1.0, epochs=7), "a", "new"),
        (JudgedConfig(max_drop=1.0), "b", "new"),
    ],
    ids=["another judgement", "another setting", "other texts"],
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

    def train(work: Path) -> Writer:
        pytest.fail("it trained")

    with pytest.raises(ArtifactError, match="is not an artifact"):
        trained_artifact(tmp_path / "thesis", "noting", TrainingConfig(), train, identity=())
