"""Teachers: fine-tuning every architecture by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from tests.toy_models import SHAPES, save_encoder

QUICK = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3, "precision": "fp32"}

STEEPER = {"mobilebert": {"learning_rate": 1e-2, "epochs": 10}}
"""Without layer norms, small random weights give next to no signal at first."""


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", SHAPES)
def test_every_architecture_is_fine_tuned_by_name(
    model_type: str, task: Task, tmp_path: Path
) -> None:
    encoder = save_encoder(model_type, tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), **{**QUICK, **STEEPER.get(model_type, {})})
    artifact = finetune_by_name(task, config, tmp_path / "teacher")
    score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
    assert artifact.card.family == model_type
    assert artifact.card.findings.training.epochs[-1]["accuracy"] == pytest.approx(score.value)
    assert score.value > 0.7


def test_the_same_run_gives_the_same_artifact(task: Task, tmp_path: Path) -> None:
    config = FinetuneConfig(teacher=str(save_encoder("bert", tmp_path / "encoder")), **QUICK)
    first, second = (finetune_by_name(task, config, tmp_path / name) for name in ("a", "b"))
    assert first.digest == second.digest


def test_a_fine_tuned_artifact_is_a_start_for_other_labels(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    other = Task("other", ("a", "b", "c"), "accuracy", ("text",), task.train, task.dev)
    config = FinetuneConfig(teacher=str(trained_teacher.path), **{**QUICK, "epochs": 1})
    artifact = finetune_by_name(other, config, tmp_path / "again")
    assert open_classifier(artifact).logits(task.dev.examples[:2]).shape == (2, 3)
    assert artifact.card.parent is not None
    assert artifact.card.parent.digest == trained_teacher.digest
    assert artifact.card.task.labels == ("a", "b", "c")


def test_a_frozen_encoder_stays_and_its_head_learns(task: Task, tmp_path: Path) -> None:
    encoder = save_encoder("bert", tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), epochs=1, precision="fp32", freeze="encoder")
    made = finetune_by_name(task, config, tmp_path / "made")
    assert made.card.config["learning_rate"] == 1e-3
    before, after = (load_file(each / "model.safetensors") for each in (encoder, made.path))
    moved = {
        name
        for name, own in before.items()
        if not (name.startswith("pooler") or torch.equal(after[f"bert.{name}"], own))
    }
    assert not moved
    assert after["classifier.bias"].any(), "it begins at 0"
    explicit = config.changed({"learning_rate": 2e-4})
    assert explicit.paced() == explicit
