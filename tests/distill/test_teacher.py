"""Teachers: fine-tuning every architecture by name, and answers computed once and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.predictor import open_classifier
from bertender.measure.accuracy import evaluate
from bertender.tasks.task import Task
from distill import teacher as teacher_module
from distill.data import token_dataset
from distill.teacher import FinetuneConfig, finetune_by_name, teacher_logits
from tests.distill.toys import SHAPES, save_encoder, tiny_classifier, tiny_tokenizer

QUICK = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3, "precision": "fp32"}

STEEPER = {"mobilebert": {"learning_rate": 1e-2}}
"""Without layer norms, small random weights give next to no signal at first."""


@pytest.mark.parametrize("model_type", SHAPES)
def test_every_architecture_is_fine_tuned_by_name(
    model_type: str, task: Task, tmp_path: Path
) -> None:
    encoder = save_encoder(model_type, tmp_path / "encoder")
    config = FinetuneConfig(teacher=str(encoder), **{**QUICK, **STEEPER.get(model_type, {})})
    artifact = finetune_by_name(task, config, tmp_path / "teacher")
    score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
    assert artifact.card.family == model_type
    assert artifact.card.metrics["epochs"][-1]["accuracy"] == pytest.approx(score.value)
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


def test_teacher_logits_are_the_teachers_in_the_order_of_the_examples(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    model = tiny_classifier("bert")
    examples = token_dataset(task.train, tiny_tokenizer(), 64)
    logits = teacher_logits(model, "digest", examples)
    for row in (0, 17, 95):
        with torch.inference_mode():
            alone = model(torch.tensor([examples.columns["input_ids"][row]])).logits[0]
        torch.testing.assert_close(logits[row], alone, rtol=1e-4, atol=1e-5)


def test_teacher_logits_are_computed_once_for_each_teacher_and_texts(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))
    runs = []
    compute = teacher_module._compute_logits
    monkeypatch.setattr(
        teacher_module, "_compute_logits", lambda *given: runs.append(1) or compute(*given)
    )
    model, tokenizer = tiny_classifier("bert"), tiny_tokenizer()
    examples = token_dataset(task.train, tokenizer, 64)
    first = teacher_logits(model, "one", examples)
    assert torch.equal(teacher_logits(model, "one", examples), first)
    assert len(runs) == 1
    teacher_logits(model, "another", examples)
    teacher_logits(model, "one", token_dataset(task.dev, tokenizer, 64))
    teacher_logits(model, "one", token_dataset(task.train, tokenizer, 8))
    assert len(runs) == 4
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4


def test_an_interrupted_computation_leaves_no_file(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path))

    def interrupted(*given: object) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(teacher_module, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        teacher_logits(
            tiny_classifier("bert"), "one", token_dataset(task.dev, tiny_tokenizer(), 64)
        )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
