"""Teachers: fine-tuning every architecture by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.training.examples import TensorBatch
from bertender.training.loop import train
from bertender.training.steps import LossParts
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import (
    GradualUnfreezing,
    finetune_by_name,
    label_objective,
    trained_parts,
    with_settings,
)
from distill.teachers.encoders import load_classifier
from tests.toy_models import SHAPES, save_encoder
from tests.training.runs import classification

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


def test_layers_begin_to_learn_one_after_the_other(tmp_path: Path) -> None:
    """Four layers and the embeddings below the head: six shares of 12 steps, two each."""
    start = classification()
    model = start.model
    changed: list[set[str]] = []
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def objective(module: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        changed.append(
            {
                name.removeprefix("bert.encoder.").rpartition(".")[0][:7]
                for name, weight in module.named_parameters()
                if not torch.equal(weight, before[name])
            }
        )
        return label_objective(module, batch, step)

    config = FinetuneConfig(
        epochs=1, batch_size=8, precision="fp32", freeze="gradual", warmup_ratio=0
    )
    with trained_parts(model, config):
        gradual = with_settings(objective, model, start.examples, config)
        train(model, start.examples, gradual, config, tmp_path)
    assert all(weight.requires_grad for weight in model.parameters())
    heads, layers = {"classif", "bert.po"}, [f"layer.{number}" for number in (3, 2, 1, 0)]
    grown = [heads | set(layers[:count]) for count in range(5)]
    assert changed == [
        set(),
        *(own for own in grown for _ in range(2)),
        heads | {*layers, "bert.em"},
    ]
    assert config.paced() == config, "the rate is that of a whole model"


@pytest.mark.parametrize(("steps", "late"), [(2, 2), (5, 1), (6, 0), (12, 0)])
def test_parts_that_never_begin_are_said(
    steps: int, late: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Five parts of shares of the steps: of 2 steps, the last has 1 * 6 // 2 = 3 of them."""
    gradual = GradualUnfreezing(label_objective, classification().model, steps)
    assert gradual.learning(steps - 1) == 5 - late
    assert [f"lowest {late} never" in line for line in caplog.messages] == [True] * (late > 0)


def test_settings_of_fine_tuning_go_together(task: Task, tmp_path: Path) -> None:
    config = FinetuneConfig(
        teacher=str(save_encoder("electra", tmp_path / "encoder")),
        **{**QUICK, "epochs": 1, "batch_size": 8},
        freeze="gradual",
        adversarial="freelb",
        adversarial_steps=2,
        accumulation=2,
    )
    made = finetune_by_name(task, config, tmp_path / "made")
    assert made.card.findings.training.steps == 6
    assert made.card.config["adversarial"] == "freelb"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("a", "b", "c"), r"is for 2 outputs \('fruit', 'tool'\) and starts anew, for 3"),
        (("a", "b"), r"what it has learned as 'fruit', 'tool' is here 'a', 'b', in this order"),
        (("fruit", "tool"), None),
    ],
)
def test_the_head_of_another_task_is_said(
    labels: tuple[str, ...],
    said: str | None,
    trained_teacher: Artifact,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load_classifier(str(trained_teacher.path), labels)
    found = [line for line in caplog.messages if line.startswith("the head of")]
    assert len(found) == (said is not None) and all(re.search(said or "", line) for line in found)
