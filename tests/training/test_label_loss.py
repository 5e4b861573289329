"""The loss with labels, weighed and smoothed: PyTorch's and scikit-learn's values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.regression import REGRESSION
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Split, Task
from bertender.training.config import TaskTrainingConfig
from bertender.training.examples import token_dataset
from bertender.training.heads import HEADS, head_of
from bertender.training.heads.head import LabelLoss, hard_labels, parts_of_a_batch
from distill.distillation.config import DistillConfig
from distill.distillation.on_task import check_task
from distill.students.weights import with_head
from tests.toy_kinds import TASKS
from tests.toy_models import tiny_classifier
from tests.toys import tiny_tokenizer, toy_task

BALANCED = TaskTrainingConfig(class_weights="balanced", label_smoothing=0.1)
LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [1.0, -2.0, 0.0], [9.0, 9.0, 0.0]])


def task_of(problem: Any, targets: tuple[Any, ...], labels: int = 3) -> Task:
    split = Split(tuple((f"text {row}",) for row in range(len(targets))), targets)
    names = tuple("abcd"[:labels])
    return replace(
        toy_task(), labels=names, train=split, problem_type=problem.name, metric=problem.metrics[0]
    )


def test_weighed_and_smoothed_labels_are_pytorchs() -> None:
    labels, how = torch.tensor([0, 2, 2, NO_LABEL]), LabelLoss((0.5, 1.0, 3.0), 0.2)
    expected = functional.cross_entropy(
        LOGITS, labels, torch.tensor(how.weights), ignore_index=NO_LABEL, label_smoothing=0.2
    )
    assert float(hard_labels(LOGITS, labels, how)) == pytest.approx(float(expected))
    assert float(hard_labels(LOGITS, torch.full((4,), NO_LABEL), how)) == 0


def test_balanced_weights_are_scikit_learns() -> None:
    targets = (0,) * 6 + (1,) * 2 + (2,) + (NO_LABEL,)
    head = HEADS[SINGLE_LABEL.name].configured(BALANCED, task_of(SINGLE_LABEL, targets, labels=4))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=np.array(targets[:-1]))
    assert head.label_loss.weights == pytest.approx((*expected, 1.0)), "the fourth is nowhere"
    assert HEADS[SINGLE_LABEL.name].label_loss == LabelLoss(), "the row itself stays"


def test_tags_are_weighed_by_words() -> None:
    head = HEADS[TOKEN_CLASSIFICATION.name].configured(
        BALANCED, task_of(TOKEN_CLASSIFICATION, ((0, 0, 0), (0, 0, 1)), labels=2)
    )
    assert head.label_loss.weights == pytest.approx((6 / 10, 6 / 2))


def test_a_rare_label_of_sets_counts_as_much_as_its_absence() -> None:
    head = HEADS[MULTI_LABEL.name].configured(
        BALANCED, task_of(MULTI_LABEL, ((0, 1), (0,), (), ()))
    )
    assert head.label_loss.weights == pytest.approx((1.0, 3.0, 1.0))
    batch = {"labels": torch.tensor([[0, 1], [-1, -1]])}
    truth = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) * 0.9 + 0.05
    expected = functional.binary_cross_entropy_with_logits(
        LOGITS[:2], truth, pos_weight=torch.tensor(head.label_loss.weights)
    )
    assert float(head.hard_loss(LOGITS[:2], batch)) == pytest.approx(float(expected))


SUMMED = [name for name, task in TASKS.items() if not task.problem.gives_vectors]


@pytest.mark.parametrize("name", SUMMED)
def test_losses_are_summed_over_what_has_a_label(name: str) -> None:
    """Of several heads, over each one's own."""
    split, problem = TASKS[name].train.first(12), TASKS[name].problem
    targets = (
        target if row % 3 else problem.unlabelled(example)
        for row, (example, target) in enumerate(zip(split.examples, split.label_ids, strict=True))
    )
    split, head = replace(split, label_ids=tuple(targets)), head_of(problem)
    outputs = len(problem.output_names(TASKS[name].labels))
    model = with_head(tiny_classifier("bert", outputs), head).eval()
    examples = token_dataset(split, tiny_tokenizer(), name)
    rows = [examples[row] for row in range(len(examples))]
    with torch.no_grad():
        alone = sum(float(head.summed_loss(model, examples.collate([row]))) for row in rows)
        together = float(head.summed_loss(model, examples.collate(rows)))
    assert together == pytest.approx(alone, rel=1e-4)


def test_a_label_of_every_set_is_learned() -> None:
    """Without a weight, smoothing alone would teach that it is nowhere."""
    targets = ((0, 1), (0,), (0, 2))
    head = HEADS[MULTI_LABEL.name].configured(BALANCED, task_of(MULTI_LABEL, targets))
    logits = LOGITS[:2].clone().requires_grad_()
    head.hard_loss(logits, {"labels": torch.tensor([[0, 1], [0, -1]])}).backward()
    assert logits.grad is not None
    assert logits.grad[1, 0] < 0 and (logits.grad[1, 1:] > 0).all()


def test_what_has_no_classes_or_no_loss_with_labels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"class_weights=balanced, label_smoothing=0.1: .*regres"):
        HEADS[REGRESSION.name].configured(BALANCED, task_of(REGRESSION, (1.0, 2.0)))
    config = DistillConfig(method="minilm", label_smoothing=0.1)
    unlabelled = replace(config.changed_method(), phases=config.changed_method().phases[:1])
    with pytest.raises(ConfigError, match=r"label_smoothing=0.1: method 'minilm' has no loss"):
        check_task(config, unlabelled, toy_task())


def test_parts_of_a_batch_weigh_tokens_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the processes' losses is that of the whole batch, however they share it."""
    labels = torch.tensor([0, 2, 2, NO_LABEL])
    parts, counts = ((LOGITS[:1], labels[:1]), (LOGITS[1:], labels[1:])), [1.0, 2.0]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    losses = []
    for (logits, own), other in zip(parts, counts[::-1], strict=True):
        monkeypatch.setattr(
            torch.distributed, "all_reduce", lambda count, other=other: count.add_(other / 2)
        )
        with parts_of_a_batch():
            losses.append(hard_labels(logits, own))
        alone = functional.cross_entropy(logits, own, ignore_index=NO_LABEL)
        torch.testing.assert_close(hard_labels(logits, own), alone)  # of this process alone
    torch.testing.assert_close(sum(losses) / 2, hard_labels(LOGITS, labels))
