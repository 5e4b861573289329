"""One label everywhere: when it is a fault, when it is sound, and which teachers are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.comparison import accuracy as constant
from bertender.comparison.accuracy import check_teacher_varied, found_constant, is_fault
from bertender.core.errors import ConstantError
from bertender.core.findings import ConstantFindings
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch
from tests.fake_classifier import EXAMPLES, LABELS, fake_classifier, honest, logits_of
from tests.fake_predictor import FakePredictor
from tests.toys import number_task, ranking_task, similarity_task

TRUE = tuple(logits_of(EXAMPLES).argmax(axis=1).tolist())
TASK = Task("words", LABELS, "accuracy", ("text",), Split((), ()), Split(EXAMPLES, TRUE))
TAGGED = replace(
    TASK,
    labels=("O", "B-A"),
    metric="entity_f1",
    problem_type=TOKEN_CLASSIFICATION.name,
    dev=Split((("a", "b", "c"), ("d",)), ((0, 1, 0), (0,))),
)


def always(label: int) -> Any:
    """Logits of one label, whatever the text."""
    return lambda batch: np.tile(np.eye(2, dtype=np.float32)[label], (len(batch), 1))


def test_the_label_is_found_with_its_share() -> None:
    found = found_constant(TASK, TASK.dev, np.ones(len(EXAMPLES), dtype=np.int64))
    share = sum(TRUE) / len(TRUE)
    assert found == ConstantFindings(
        label="yes", share=share, n=len(TRUE), metric="accuracy", score=share
    )


def test_a_tag_is_counted_by_words() -> None:
    found = found_constant(TAGGED, TAGGED.dev, ((0, 0, 0), (0,)))
    assert found is not None
    assert (found.label, found.share, found.n) == ("O", 0.75, 4)
    assert (found.metric, found.score) == ("entity_f1", 0.0)


SAME_EVERYWHERE: dict[str, tuple[Task, Any, str]] = {
    "number": (
        (numbers := number_task(2, 8)),
        np.full(8, 2.96),
        f"the 8 true numbers are {min(numbers.dev.label_ids):.4g} to "
        f"{max(numbers.dev.label_ids):.4g}",
    ),
    "cosine": (similarity_task(2, 8), np.ones((8, 2)), "all 8 pairs have a cosine of 1"),
    "ranking": (
        (queries := ranking_task(2, 8)),
        tuple((0.5,) * len(each) for each in queries.dev.label_ids),
        "queries have a most relevant passage first",
    ),
}
"""Of kinds without labels: a task, constant predictions, and the words on the truth."""


@pytest.mark.parametrize(
    ("task", "predicted", "said"), SAME_EVERYWHERE.values(), ids=SAME_EVERYWHERE
)
def test_of_a_constant_without_labels_no_share_of_labels_is_said(
    task: Task, predicted: Any, said: str
) -> None:
    found = found_constant(task, task.dev, predicted)
    assert found is not None and found.words.startswith(f"predicts {found.label!r} everywhere; ")
    assert found.words.endswith(said) and "labels" not in found.words


@pytest.mark.parametrize(
    ("task", "true", "predicted"),
    [
        (TASK, TRUE, (0, 1) * (len(TRUE) // 2)),
        (TASK, (1,) * len(TRUE), (1,) * len(TRUE)),
        (TASK, (), ()),
        (TAGGED, TAGGED.dev.label_ids, ((0, 1, 0), (0,))),
    ],
    ids=["two labels", "one true label", "no texts", "two tags"],
)
def test_nothing_is_said_of_what_is_sound(task: Task, true: Any, predicted: Any) -> None:
    split = Split(task.dev.examples[: len(true)], true)
    assert found_constant(task, split, predicted) is None


@pytest.mark.parametrize(
    ("share", "n", "score", "fault"),
    [
        (0.5, 872, 0.5, True),
        (0.25, 200, 0.25, True),
        (0.8, 1000, 0.8, True),
        (0.5, 190, 0.5, False),
        (0.97, 2000, 0.97, False),
        (0.97, 4000, 0.0, True),
        (0.97, 200, 0.0, False),
    ],
    ids=["halves", "quarters", "most", "few texts", "skewed", "worth nothing", "few others"],
)
def test_what_is_a_fault(share: float, n: int, score: float, fault: bool) -> None:
    found = ConstantFindings(label="a", share=share, n=n, metric="matthews", score=score)
    assert is_fault(found) is fault


def test_of_a_sound_teacher_few_texts_are_read() -> None:
    many = replace(TASK, dev=Split(EXAMPLES * 9, TRUE * 9))
    classifier = fake_classifier(answer=honest)
    check_teacher_varied(classifier, Path("sound"), many)
    assert isinstance(classifier.predictor, FakePredictor)
    assert sum(map(len, classifier.predictor.batches)) <= 64


def test_a_teacher_of_one_label_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant, "FEWEST_OTHERS", 20)
    with pytest.raises(ConstantError, match=r"stuck predicts 'no' everywhere.*train this one"):
        check_teacher_varied(fake_classifier(answer=always(0)), Path("stuck"), TASK)


def test_a_teacher_is_not_blamed_for_texts_of_one_label() -> None:
    alike = replace(TASK, dev=Split(EXAMPLES, (0,) * len(EXAMPLES)))
    check_teacher_varied(fake_classifier(answer=always(0)), Path("fine"), alike)


def test_batches_of_one_label_come_before_others() -> None:
    """Held-out files may be sorted by label: a whole part of one label proves nothing."""
    last = EXAMPLES[-1]

    def late(batch: Batch) -> np.ndarray:
        labels = [int(example == last) for example in batch.examples]
        return np.eye(2, dtype=np.float32)[labels]

    check_teacher_varied(fake_classifier(answer=late), Path("late"), TASK)
