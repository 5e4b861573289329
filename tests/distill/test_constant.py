"""Every stage that trains refuses a model of one label, and writes it where that is allowed.

A model that is pruned and not trained is written: a later stage may recover it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.comparison import accuracy as constant
from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.errors import ConstantError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Split, Task
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig, FinetuneConfig, MultiTaskConfig
from distill.finetuning.finetune import finetune, finetune_tasks
from distill.pruning import pruner
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from tests.listening import no_training
from tests.toys import tiny_bert, tiny_tokenizer, toy_task

UNMOVED = {"learning_rate": 1e-9, "epochs": 1, "precision": "fp32", "batch_size": 16}
"""Nothing is learned at such a rate."""
Make = Callable[[Artifact, Task, bool, Path], Artifact]


def _finetune(teacher: Artifact, task: Task, allowed: bool, out: Path) -> Artifact:
    tokenizer = tiny_tokenizer()
    config = FinetuneConfig(**UNMOVED, allow_constant=allowed)
    return finetune(tiny_bert(len(tokenizer), task.labels), tokenizer, task, config, out)


def _finetune_tasks(teacher: Artifact, task: Task, allowed: bool, out: Path) -> Artifact:
    tokenizer = tiny_tokenizer()
    config = MultiTaskConfig(**UNMOVED, allow_constant=allowed)
    return finetune_tasks([tiny_bert(len(tokenizer), task.labels)], tokenizer, [task], config, out)


def _distill(teacher: Artifact, task: Task, allowed: bool, out: Path) -> Artifact:
    config = DistillConfig(method="hard", layers=1, **UNMOVED, allow_constant=allowed)
    return distill(teacher, task, config, out)


def _prune(teacher: Artifact, task: Task, allowed: bool, out: Path) -> Artifact:
    config = PruneConfig(ffn=0.5, retraining_free=True, allow_constant=allowed)
    return prune(teacher, task, config, out)


def _baseline(teacher: Artifact, task: Task, allowed: bool, out: Path) -> Artifact:
    config = BagOfWordsConfig(inverse_regularisation=1e-9, allow_constant=allowed)
    return train_bag_of_words(task, config, out)


WITHOUT_EPOCHS = {"prune", "baseline"}
STAGES: dict[str, Make] = {
    "finetune": _finetune,
    "several tasks": _finetune_tasks,
    "distill": _distill,
    "prune": _prune,
    "baseline": _baseline,
}


@pytest.fixture(autouse=True)
def few_texts_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy task has few texts."""
    monkeypatch.setattr(constant, "FEWEST_OTHERS", 10)


@pytest.fixture(scope="module")
def lopsided() -> Task:
    """Enough held-out texts to refuse a model by, and more training texts of one label."""
    whole = toy_task(train_size=48, dev_size=64)
    fruit = [row for row, label in enumerate(whole.train.label_ids) if label == 0]
    chosen = [*fruit, *range(1, 20, 2)]
    train = Split(
        tuple(whole.train.examples[row] for row in chosen),
        tuple(whole.train.label_ids[row] for row in chosen),
    )
    return Task("toy", whole.labels, "accuracy", ("text",), train, whole.dev)


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_of_one_label_is_refused_unless_it_is_allowed(
    stage: str, teacher: Artifact, lopsided: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, out = STAGES[stage], tmp_path / "out"
    with caplog.at_level(logging.WARNING), pytest.raises(ConstantError) as refused:
        make(teacher, lopsided, False, out)
    assert "everywhere; 50.0% of 64 labels" in str(refused.value)
    early = [line for line in caplog.messages if "so far the model predicts" in line]
    assert len(early) == (stage not in WITHOUT_EPOCHS)
    assert not out.exists()
    with no_training():
        made = make(teacher, lopsided, True, out)
    constant = made.card.findings.scores.constant
    score, predictions = evaluate(open_classifier(made), lopsided.dev, "accuracy")
    assert {lopsided.labels[label] for label in predictions} == {constant.label}
    assert (score.value, constant.share, constant.n) == (0.5, 0.5, 64)


@pytest.fixture
def ruinous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any cut leaves a model of one label; the toys' heads and neurons matter too little."""
    whole = pruner.in_rounds

    def cut(*given: Any) -> Any:
        model, *others = whole(*given)
        model.classifier.bias.data[0] += 100
        return model, *others

    monkeypatch.setattr(pruner, "in_rounds", cut)


@pytest.mark.usefixtures("ruinous")
@pytest.mark.parametrize("allowed", [False, True])
def test_what_is_cut_to_one_label_is_written_for_a_stage_that_recovers_it(
    allowed: bool,
    trained_teacher: Artifact,
    lopsided: Task,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = PruneConfig(ffn=0.5, recover=False, allow_constant=allowed)
    with caplog.at_level(logging.WARNING, "distill.pruning"):
        made = prune(trained_teacher, lopsided, config, tmp_path / "out")
    constant = made.card.findings.scores.constant
    assert constant is not None and constant.share == 0.5
    said = [line for line in caplog.messages if constant.words in line]
    assert ["to cut less, or a recovery" in line for line in said] == [True] * (not allowed)


@pytest.mark.usefixtures("ruinous")
def test_what_should_have_recovered_and_predicts_one_label_is_refused(
    trained_teacher: Artifact, lopsided: Task, tmp_path: Path
) -> None:
    config = PruneConfig(ffn=0.5, **UNMOVED)
    with pytest.raises(ConstantError, match="cut less, in more rounds; more epochs; or a higher"):
        prune(trained_teacher, lopsided, config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_predicted_one_label_before_the_cut_needs_no_recovery(
    teacher: Artifact, lopsided: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A smaller cut, or more training of it, is not what helps."""
    with pytest.raises(ConstantError, match="Try another model to prune: this one predicts one"):
        _prune(teacher, lopsided, False, tmp_path / "refused")
    with caplog.at_level(logging.WARNING, "distill.pruning"):
        prune(teacher, lopsided, PruneConfig(ffn=0.5, recover=False), tmp_path / "out")
    assert "another model to prune" in caplog.text


@pytest.mark.parametrize("make", [distill, prune])
def test_a_teacher_of_one_label_is_refused_before_anything_is_trained(
    make: Callable[..., Artifact], teacher: Artifact, lopsided: Task, tmp_path: Path
) -> None:
    config = DistillConfig(layers=1) if make is distill else PruneConfig(ffn=0.5)
    with (
        no_training(),
        pytest.raises(ConstantError, match=r"^the teacher .* predicts.*allow_constant"),
    ):
        make(teacher, lopsided, config, tmp_path / "out")


@pytest.mark.parametrize(
    ("rate", "said"), [(1e-5, "a higher learning_rate"), (1e-2, "a lower learning_rate")]
)
def test_the_error_says_what_it_was_trained_with_and_what_to_try(
    rate: float, said: str, teacher: Artifact, lopsided: Task, tmp_path: Path
) -> None:
    one_label = replace(
        lopsided, train=lopsided.train.where([not x for x in lopsided.train.label_ids])
    )
    settings = {"layers": 1, "epochs": 1, "precision": "fp32", "learning_rate": rate}
    config = DistillConfig(method="hard", **settings)
    with pytest.raises(ConstantError) as refused:
        distill(teacher, one_label, config, tmp_path / "out")
    assert str(refused.value).startswith(f"method=hard, learning_rate={rate}, epochs=1: ")
    assert said in str(refused.value) and "teacher_layers" in str(refused.value)
