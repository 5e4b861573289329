"""Differences of two models: which texts, in which order, and what they count to."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.comparison.differences import (
    COMPARED,
    Answered,
    DiffConfig,
    check_comparable,
    differences,
    differences_of,
    mcnemar,
    save_differences,
    task_of_file,
)
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.metrics.metric import NO_LABEL, is_labelled
from bertender.problems import KINDS, PROBLEMS
from bertender.problems.problem import Outputs
from bertender.tasks.task import Split, Task
from tests.toy_kinds import TASKS
from tests.toy_tagging import TASK as TAGGING
from tests.toys import toy_task

NOTHING = Split((), ())


def asked(name: str, task: Task, logits: Sequence[Any], labels: Sequence[str] = ()) -> Answered:
    """The answers of a model that gives these logits, a list of rows for each text."""
    labels = tuple(labels) or task.labels
    problem = task.problem.of_labels(labels)
    outputs = []
    for rows in logits:
        own = np.array(rows, dtype=np.float32)
        outputs.append(Outputs(own, np.arange(len(own))))
    pairs = zip(outputs, task.dev.examples, strict=True)
    answers = [problem.by_names(problem.decode(*each), labels) for each in pairs]
    return Answered(name, outputs, answers, problem, labels)


def of_texts(kind: str, labels: tuple[str, ...], targets: Sequence[Any]) -> Task:
    examples = tuple((f"text {row}",) for row in range(len(targets)))
    dev = Split(examples, tuple(targets))
    return Task("t", labels, "accuracy", ("text",), NOTHING, dev, problem_type=kind)


def odds(probability: float) -> list[list[float]]:
    """Logits of two labels, of which the second has this probability."""
    return [[0.0, math.log(probability / (1 - probability))]]


def test_turned_labels_come_first_by_lost_confidence_then_changes() -> None:
    task = of_texts("single_label_classification", ("no", "yes"), (1, 1, 0, 1, 1))
    first = asked("a", task, [*map(odds, (0.9, 0.6, 0.2, 0.8, 0.7))])
    second = asked("b", task, [*map(odds, (0.3, 0.4, 0.25, 0.55, 0.699))])
    found = differences_of(first, second, task)
    assert [each.row for each in found.differences] == [1, 2, 4, 3]
    worst, *_, small = found.differences
    assert (worst.first, worst.second, worst.gold, worst.at) == ("yes", "no", "yes", "yes")
    assert worst.lost == pytest.approx(0.6) and worst.first_probability == pytest.approx(0.9)
    assert small.lost is None and small.change == pytest.approx(0.05)
    assert (found.n, found.agreement) == (5, pytest.approx(0.6))
    assert (found.both_wrong, found.only_first_wrong, found.only_second_wrong) == (0, 0, 2)
    assert found.p == pytest.approx(0.5), "two heads of two coins, or two tails"


def test_mcnemar_is_the_binomial_test() -> None:
    """2 (1 + 10 + 45) / 2^10 of 2 and 8; nothing to tell of none."""
    assert mcnemar(2, 8) == mcnemar(8, 2) == pytest.approx(2 * 56 / 1024)
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0


def test_labels_in_another_order_are_the_same_labels() -> None:
    task = of_texts("single_label_classification", ("no", "yes"), (1, 0))
    first = asked("a", task, [odds(0.9), odds(0.2)])
    turned = [[rows[0][::-1]] for rows in (odds(0.9), odds(0.2))]
    found = differences_of(first, asked("b", task, turned, ("yes", "no")), task)
    assert found.agreement == 1.0 and not found.differences


def test_sets_of_labels_in_another_order_are_the_same_sets() -> None:
    task = of_texts("multi_label_classification", ("p", "q"), ((0, 1), (0,)))
    sets = [[[1.0, 2.0]], [[1.0, -1.0]]]
    turned = [[rows[0][::-1]] for rows in sets]
    first, second = asked("a", task, sets), asked("b", task, turned, ("q", "p"))
    for one, other in ((first, second), (second, first), (second, second)):
        found = differences_of(one, other, task)
        assert found.agreement == 1.0 and not found.differences
        assert (found.both_wrong, found.only_first_wrong, found.only_second_wrong) == (0, 0, 0)


def test_of_a_set_the_label_that_moved_most_is_named() -> None:
    labels = ("fruit", "tool", "count")
    task = of_texts("multi_label_classification", labels, ((0,), (), (0, 1)))
    first = asked("a", task, [[[2.0, -3.0, -4.0]], [[-1.0, -1.0, -1.0]], [[1.0, 1.0, -9.0]]])
    second = asked("b", task, [[[-2.0, 1.0, -4.0]], [[-1.0, -1.0, -1.0]], [[1.0, 1.0, -0.1]]])
    found = differences_of(first, second, task)
    turned, same = found.differences
    assert (turned.first, turned.second, turned.at) == (("fruit",), ("tool",), "fruit")
    half = 1 / (1 + math.exp(-2.0))
    assert turned.lost == pytest.approx(2 * half - 1), "0.881 and 0.119"
    assert (same.row, same.at, same.lost) == (3, "count", None)
    assert found.only_second_wrong == 1 and found.both_wrong == 0


def test_of_tags_the_word_is_named_and_unseen_words_are_outside() -> None:
    toy = TASKS["token_classification"]
    labels = ("O", "B-fruit", "I-fruit")
    dev = Split((("ripe", "plum", "x"), ("a", "b")), ((0, 1, 0), (0, 0)))
    task = replace(toy, labels=labels, dev=dev)
    rows = [[3.0, 0, 0], [0, 3.0, 0], [3.0, 0, 0]]
    first = asked("a", task, [rows, [[3.0, 0, 0]]])  # of the second text, it sees one word
    second = asked("b", task, [[rows[0], [0, 0, 3.0], rows[2]], [[3.0, 0, 0]]])
    found = differences_of(first, second, task)
    (turned,) = found.differences
    assert turned.at == "plum: B-fruit" and turned.gold == ("O", "B-fruit", "O")
    assert (turned.first, turned.second) == (("O", "B-fruit", "O"), ("O", "I-fruit", "O"))
    assert (found.agreement, found.only_second_wrong) == (0.5, 1)


def test_numbers_differ_by_their_distance() -> None:
    task = of_texts("regression", ("number",), (1.0, 2.0, 3.0))
    first = asked("a", task, [[[1.0]], [[2.0]], [[3.0]]])
    second = asked("b", task, [[[1.5]], [[2.001]], [[1.0]]])
    found = differences_of(first, second, task)
    assert [(each.row, each.change) for each in found.differences] == [(3, 2.0), (1, 0.5)]
    assert (found.agreement, found.p) == (None, None)
    assert (found.first_error, found.second_error) == (0.0, pytest.approx(2.501 / 3))


def test_texts_without_labels_count_agreement_alone() -> None:
    task = of_texts("single_label_classification", ("no", "yes"), (NO_LABEL, NO_LABEL))
    found = differences_of(
        *(asked(name, task, [odds(0.9), odds(p)]) for name, p in (("a", 0.9), ("b", 0.1))), task
    )
    assert (found.labelled, found.p, found.agreement) == (0, None, 0.5)
    assert found.differences[0].gold is None


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.name not in COMPARED])
def test_other_kinds_are_refused_by_name(kind: str, teacher: Artifact) -> None:
    other = with_task(teacher, problem_type=kind)
    with pytest.raises(ConfigError, match=f"a model of '{kind}'.*regression"):
        check_comparable(other, other)


def with_task(artifact: Artifact, **changes: object) -> Artifact:
    record = artifact.card.task.model_copy(update=changes)
    return replace(artifact, card=artifact.card.model_copy(update={"task": record}))


def test_other_labels_and_kinds_are_refused(teacher: Artifact) -> None:
    with pytest.raises(ModelError, match=r"alone has 'tool' and .* alone has 'nail'"):
        check_comparable(teacher, with_task(teacher, labels=("fruit", "nail")))
    check_comparable(teacher, with_task(teacher, labels=("tool", "fruit")))
    with pytest.raises(ModelError, match=r"'single_label_classification' and .* for 'regression'"):
        check_comparable(teacher, with_task(teacher, problem_type="regression"))


def test_a_file_is_read_with_its_labels_or_without(teacher: Artifact, tmp_path: Path) -> None:
    labelled, texts = tmp_path / "new.csv", tmp_path / "new.txt"
    labelled.write_text("text,label\nripe plum,fruit\nold saw,tool\n")
    texts.write_text("ripe plum\nold saw\n")
    task = task_of_file(teacher, labelled, DiffConfig())
    assert (task.dev.label_ids, len(task.selection)) == ((0, 1), 0), "none is a validation text"
    bare = task_of_file(teacher, texts, DiffConfig())
    assert bare.dev.examples == task.dev.examples
    (tmp_path / "bare.csv").write_text("body\nripe plum\nold saw\n")
    named = DiffConfig.parse({"text_column": "body"})
    assert task_of_file(teacher, tmp_path / "bare.csv", named).dev.examples == task.dev.examples
    with pytest.raises(DataError, match="no column 'class'"):
        task_of_file(teacher, labelled, DiffConfig.parse({"label_column": "class"}))
    pairs = DiffConfig.parse({"text_column": "text", "pair_column": "more"})
    known = with_task(teacher, source={"dev": "dev.csv"})
    for names, row in (("text,more,label", "ripe plum,saw,fruit"), ("text,more", "ripe plum,saw")):
        (tmp_path / "pairs.csv").write_text(f"{names}\n{row}\n")
        assert len(task_of_file(teacher, tmp_path / "pairs.csv", pairs).dev) == 1
        with pytest.raises(ConfigError, match="reads 1 text an example"):
            task_of_file(known, tmp_path / "pairs.csv", pairs)
    found = differences(teacher, teacher, bare)
    assert (found.n, found.labelled, found.differences) == (2, 0, ())


WORDS_ALONE = {
    "words.conll": "ripe\nplum\n\nold\nsaw\n",
    "words.jsonl": '{"words": ["ripe", "plum"]}\n{"words": ["old", "saw"]}\n',
    "words.csv": "words\nripe plum\nold saw\n",
    "words.txt": "ripe plum\n\nold saw\n",
    "words.seq.in": "ripe plum\nold saw\n",
}


@pytest.mark.parametrize("name", WORDS_ALONE)
def test_words_without_tags_are_read_in_any_format(
    name: str, teacher: Artifact, tmp_path: Path
) -> None:
    of_words = {"labels": TAGGING.labels, "text_columns": ("words",)}
    tagger = with_task(teacher, problem_type=TAGGING.problem_type, **of_words)
    (tmp_path / name).write_text(WORDS_ALONE[name])
    task = task_of_file(tagger, tmp_path / name, DiffConfig())
    assert task.dev.examples == (("ripe", "plum"), ("old", "saw"))
    assert not [*filter(is_labelled, task.dev.label_ids)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_all_differences_are_saved(suffix: str, tmp_path: Path) -> None:
    task = of_texts("single_label_classification", ("no", "yes"), (1, 1))
    hostile = 'a "quoted", line\nof <b>text</b>'
    task = replace(task, dev=replace(task.dev, examples=((hostile,), ("b",))))
    pair = (asked(name, task, [odds(p), odds(p)]) for name, p in (("a", 0.9), ("b", 0.1)))
    path = tmp_path / f"found{suffix}"
    save_differences(differences_of(*pair, task), path)
    with path.open(newline="") as file:
        rows: list[Any] = [*csv.DictReader(file)] if suffix == ".csv" else [*map(json.loads, file)]
    assert [row["first"] for row in rows] == ["yes", "yes"]
    assert rows[0]["text"] in (hostile, [hostile])


def test_every_compared_kind_is_a_problem() -> None:
    assert PROBLEMS.keys() >= COMPARED and toy_task().problem_type in COMPARED
