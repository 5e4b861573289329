"""The report of other kinds of problems than labels: what has no meaning is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.report.analyse import analyse
from bertender.report.analyses import AnalyseConfig
from bertender.report.page import page
from bertender.tasks.task import Task
from tests.quick import quick
from tests.toy_kinds import TASKS
from tests.toy_models import save_artifact, untrained_model

CONFIG = CompareConfig(processes=1, rounds=2, single_texts=4, batch_size=4, threads=1, noisy=True)
KINDS = ("regression", "multi_label_classification", "token_classification", "multiple_choice")


def untrained(task: Task, folder: Path, sign: int) -> Artifact:
    """A model, or the same with its outputs turned around."""
    model = untrained_model(task, seed=1)
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.mul_(sign)
    return save_artifact(model.eval(), task, folder)


@pytest.mark.parametrize("kind", quick(KINDS, "regression", "token_classification"))
def test_a_report_of_another_kind(kind: str, tmp_path: Path) -> None:
    task = replace(TASKS[kind], dev=TASKS[kind].dev.first(16))
    models = [untrained(task, tmp_path / f"model{sign}", sign) for sign in (1, -1)]
    comparison = compare(models, task, CONFIG)
    analysis = analyse(models[0], task, AnalyseConfig(texts=8))
    text = page(comparison, analyses=[analysis], runtime="0")
    assert "Worst disagreements" in text and "Score against time" in text
    assert "Confusion" not in text and "Layers and heads of" in text
    assert ("Reliability of probabilities" in text) == (kind != "regression")
    assert ("Labels of" in text) == (kind != "regression")
