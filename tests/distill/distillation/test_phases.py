"""Phases run one after another: where a killed run goes on, and which texts each reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.methods import METHODS
from tests.distill.distillation.settings import OF_METHOD, SHORT
from tests.listening import interrupted_at

PHASED = [name for name in METHODS if METHODS[name].has_phases]


@pytest.mark.one_path
@pytest.mark.parametrize("place", [0, -1], ids=["first phase", "last phase"])
@pytest.mark.parametrize("method", PHASED)
def test_a_killed_run_goes_on_in_its_phase_to_the_same_weights(
    method: str, place: int, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings = {**SHORT, **OF_METHOD[method], "earlier_epochs": 1, "checkpoint_steps": 3}
    config = DistillConfig(method=method, **settings)
    whole = distill(trained_teacher, task, config, tmp_path / "whole")
    dying = METHODS[method].at(2).phases[place].name
    with interrupted_at(5, dying), pytest.raises(KeyboardInterrupt):
        distill(trained_teacher, task, config, tmp_path / "killed")
    resumed = distill(trained_teacher, task, config, tmp_path / "killed")
    assert resumed.digest == whole.digest
    assert resumed.card.findings == whole.card.findings


def test_phases_of_labels_alone_leave_out_texts_without_them(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """The last phase of minilm takes as many steps as without the file, its first more."""
    (tmp_path / "texts.txt").write_text("\n".join(["saw hammer"] * 300))
    settings = {**SHORT, **OF_METHOD["minilm"], "earlier_epochs": 1, "method": "minilm"}
    plain, more = (
        distill(trained_teacher, task, DistillConfig(**settings, unlabelled=file), tmp_path / name)
        for name, file in (("plain", None), ("more", tmp_path / "texts.txt"))
    )
    assert more.card.findings.training.steps == plain.card.findings.training.steps
    assert plain.digest != more.digest
