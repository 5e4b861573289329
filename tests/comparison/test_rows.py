"""Predictions beside the truth, and beside those of the first row: where they differ most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bertender.comparison.accuracy import Answers, shown
from bertender.comparison.records import Confused
from bertender.comparison.rows import SHOWN_CHARACTERS, confusion, disagreements
from bertender.metrics.metric import NO_LABEL
from bertender.problems.problem import Outputs
from bertender.tasks.task import Split, Task
from tests.toy_kinds import TASKS
from tests.toys import number_task, set_task, toy_task

TASK = replace(
    toy_task(),
    dev=Split((("one",), ("two",), ("three",), ("x" * 900,)), (0, 1, 0, 1)),
)


def answers(task: Task, *rows: Any) -> Answers:
    """Answers of a model that outputs one row for each held-out text."""
    outputs = [
        Outputs(np.atleast_2d(np.array(row, dtype=np.float32)), np.zeros(1, dtype=np.int64))
        for row in rows
    ]
    return decoded(task, outputs)


def decoded(task: Task, outputs: list[Outputs]) -> Answers:
    pairs = zip(outputs, task.dev.examples, strict=True)
    return Answers(outputs, task.problem.gather([task.problem.decode(*pair) for pair in pairs]))


FIRST = answers(TASK, [2, 0], [0, 2], [1, 0], [0, 1])


def test_labels_are_counted_by_what_is_predicted_for_them() -> None:
    found = confusion(TASK, np.array([0, 1, 1, 1]))
    assert found == (
        Confused(truth=1, predicted=1, texts=2),
        Confused(truth=0, predicted=0, texts=1),
        Confused(truth=0, predicted=1, texts=1),
    )
    unlabelled = replace(TASK, dev=Split(TASK.dev.examples, (0, NO_LABEL, NO_LABEL, 1)))
    assert sum(each.texts for each in confusion(unlabelled, np.array([0, 1, 1, 1])) or ()) == 2
    assert confusion(number_task(), np.zeros(40)) is None
    assert confusion(set_task(), [()] * 40) is None


def test_the_worst_disagreement_comes_first_and_agreement_not_at_all() -> None:
    # far apart on the first and no other label on the second; the third turns by a hair
    own = answers(TASK, [-3, 0], [0, 9], [0, 0.1], [4, 0])
    found = disagreements(TASK, FIRST, own, 10)
    assert found is not None
    assert [each.text for each in found] == ["x" * SHOWN_CHARACTERS + "...", "one", "three"]
    assert [(each.truth, each.first, each.own) for each in found] == [
        ("tool", "tool", "fruit"),
        ("fruit", "fruit", "tool"),
        ("fruit", "fruit", "tool"),
    ]
    # sum of p log(p / q), p of the first row
    p, q = (np.exp(x) / np.exp(x).sum() for x in (np.array([0.0, 1.0]), np.array([4.0, 0.0])))
    assert found[0].distance == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-5)
    assert disagreements(TASK, FIRST, own, 1) == found[:1]
    assert disagreements(TASK, FIRST, own, 0) == ()
    assert disagreements(TASK, FIRST, FIRST, 10) == ()


def test_numbers_are_all_more_or_less_apart() -> None:
    task = replace(number_task(), dev=Split((("a",), ("b",), ("c",)), (1.0, 2.0, 3.0)))
    found = disagreements(task, answers(task, [1], [2], [3]), answers(task, [1], [2.5], [5]), 10)
    assert found is not None
    assert [(each.text, each.truth, each.own) for each in found] == [
        ("c", "3", "5"),
        ("b", "2", "2.5"),
    ]
    assert [each.distance for each in found] == pytest.approx([4.0, 0.25])


def test_sets_are_shown_by_their_labels() -> None:
    task = set_task()
    task = replace(task, dev=Split(task.dev.examples[:1], ((0,),)))
    one = answers(task, [9, *[-9] * (len(task.labels) - 1)])
    (found,) = disagreements(task, one, answers(task, [-9] * len(task.labels)), 10) or ()
    assert (found.first, found.own) == (task.labels[0], "none")


@pytest.mark.parametrize("kind", [kind for kind, task in TASKS.items() if not task.problem.heads])
def test_every_kind_of_problem_has_some_or_none(kind: str) -> None:
    """Outputs of two models, one of which is the other turned around, through each decoder."""
    task = replace(TASKS[kind], dev=TASKS[kind].dev.first(4))
    if task.problem.gives_vectors:
        assert disagreements(task, Answers([], []), Answers([], []), 10) is None
        return
    one_output = kind in ("ranking", "multiple_choice")
    labels = 1 if one_output else len(task.problem.output_names(task.labels))
    generator = np.random.default_rng(0)
    first = [
        Outputs(generator.normal(size=(size, labels)), np.arange(size))
        for size in (rows_of(kind, example) for example in task.dev.examples)
    ]
    own = [each._replace(logits=-each.logits) for each in first]
    found = disagreements(task, decoded(task, first), decoded(task, own), 10)
    assert found is not None and len(found) <= 4
    assert all(each.distance > 0 and each.text for each in found)


def rows_of(kind: str, example: tuple[str, ...]) -> int:
    """How many rows of outputs an example has."""
    if kind == "token_classification":
        return len(example)
    return len(example) - 1 if kind in ("ranking", "multiple_choice") else 1


def test_an_answer_is_shown_in_words() -> None:
    assert shown(("a", "b")) == "a, b" and shown(()) == "none"
    assert shown({"intent": "play", "tags": ("O", "B")}) == "intent: play; tags: O, B"
    assert shown(0.123456) == "0.1235" and shown(None) == "-"
