"""A teacher's file is read in each form and format, and what cannot be used names its place."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from bertender.core.errors import BertenderError, ConfigError, DataError
from bertender.metrics.metric import NO_LABEL
from bertender.problems import PROBLEMS
from bertender.tasks.task import Split, Task
from bertender.tasks.teacher_files import (
    KINDS,
    LEAST_PROBABILITY,
    TeacherColumns,
    TeacherFile,
    check_outputs,
    held_out_outputs,
    is_teacher_file,
    read_teacher_file,
)
from tests.toy_heads import JOINT
from tests.toy_tagging import TASK as TAGGING
from tests.toys import answer_task, choice_task, ranking_task, similarity_task

SINGLE, SETS, NUMBERS = KINDS
Rows = Sequence[Mapping[str, Any]]


def task_of(problem_type: str, **source: Any) -> Task:
    """A task with labels a and b (or a number), whose texts are in the column `text`."""
    held_out = {SINGLE: (0, 1), SETS: ((0,), (0, 1)), NUMBERS: (0.5, 1.5)}[problem_type]
    labels = ("number",) if problem_type == NUMBERS else ("a", "b")
    dev = Split((("held out",), ("too",)), held_out)
    metric = PROBLEMS[problem_type].metrics[0]
    nothing = Split((), ())
    return Task(
        *("toy", labels, metric, ("text",), nothing, dev),
        source={"label_column": "label", **source},
        problem_type=problem_type,
    )


def json_lines(folder: Path, rows: Rows, name: str = "labels.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def table(folder: Path, rows: Rows) -> Path:
    path = folder / "labels.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return path


def parquet(folder: Path, rows: Rows) -> Path:
    path = folder / "labels.parquet"
    pa.parquet.write_table(pa.Table.from_pylist([*map(dict, rows)]), path)
    return path


def as_map(folder: Path, rows: Rows) -> Path:
    """Probabilities as a map of Parquet, which Python reads as pairs."""
    path = folder / "labels.parquet"
    pairs = [[*row["probabilities"].items()] for row in rows]
    columns = {
        "text": pa.array([row["text"] for row in rows]),
        "probabilities": pa.array(pairs, pa.map_(pa.string(), pa.float64())),
    }
    pa.parquet.write_table(pa.table(columns), path)
    return path


def read(path: Path, problem_type: str = SINGLE, **settings: Any) -> TeacherFile:
    return read_teacher_file(path, task_of(problem_type), TeacherColumns(**settings))


SOFT: list[dict[str, Any]] = [
    {"text": "one", "probabilities": {"b": 0.75, "a": 0.25}},
    {"text": "two", "probabilities": {"a": 1, "b": 0}},
]
COLUMNS = [{"text": each["text"], **each["probabilities"]} for each in SOFT]
CELLS = [{**each, "probabilities": json.dumps(each["probabilities"])} for each in SOFT]
OTHER = [{"text": each["text"], "p": each["probabilities"]} for each in SOFT]


@pytest.mark.parametrize(
    ("write", "rows", "settings"),
    [
        (json_lines, SOFT, {}),
        (parquet, SOFT, {}),
        (as_map, SOFT, {}),
        (table, CELLS, {}),
        (table, COLUMNS, {}),
        (json_lines, COLUMNS, {}),
        (table, COLUMNS, {"probability_columns": ("b", "a")}),
        (json_lines, OTHER, {"probability_columns": ("p",)}),
        (json_lines, SOFT, {"labels": ("b", "a")}),
    ],
)
def test_probabilities_are_read_in_each_format(
    write: Any, rows: Rows, settings: dict[str, Any], tmp_path: Path
) -> None:
    file = read(write(tmp_path, rows), **settings)
    assert file.labels == ("a", "b") and file.form == "probabilities"
    assert file.examples == (("one",), ("two",))
    np.testing.assert_allclose(file.outputs, [[0.25, 0.75], [1, 0]])
    logits = file.kind.logits(file.of_texts([("two",), ("one",)]))
    expected = [[0, math.log(LEAST_PROBABILITY)], [math.log(0.25), math.log(0.75)]]
    np.testing.assert_allclose(logits, expected)
    assert file.kind.decided(file.outputs) == [1, 0]


@pytest.mark.parametrize("write", [json_lines, parquet])
def test_a_list_is_in_the_order_that_is_named(write: Any, tmp_path: Path) -> None:
    lists = [[0.75, 0.25], [0.0, 1.0]]
    rows = [{**row, "probabilities": own} for row, own in zip(SOFT, lists, strict=True)]
    path = write(tmp_path, rows)
    with pytest.raises(ConfigError, match=r"order is unknown\. Give it, as --labels"):
        read(path)
    file = read(path, labels=("b", "a"))
    np.testing.assert_allclose(file.outputs, [[0.25, 0.75], [1, 0]])


def test_votes_are_shares(tmp_path: Path) -> None:
    rows = [
        {"text": "list", "votes": ["a", "a", "b", "a"]},
        {"text": "counts", "votes": {"a": 1, "b": 3}},
        {"text": "one", "votes": "b"},
    ]
    file = read(json_lines(tmp_path, rows))
    assert file.form == "votes"
    np.testing.assert_allclose(file.outputs, [[0.75, 0.25], [0.25, 0.75], [0, 1]])
    cells = [{"text": "x", "votes": "a,b, b,b"}, {"text": "y", "votes": "a"}]
    np.testing.assert_allclose(read(table(tmp_path, cells)).outputs, [[0.25, 0.75], [1, 0]])
    columns = [{"text": "x", "one": "a", "two": "b"}, {"text": "y", "one": "", "two": "b"}]
    several = read(table(tmp_path, columns), vote_columns=("one", "two"))
    np.testing.assert_allclose(several.outputs, [[0.5, 0.5], [0, 1]])


def test_votes_of_sets_and_numbers(tmp_path: Path) -> None:
    sets = [{"text": "x", "votes": [["a", "b"], ["a"], [], ["a"]]}]
    np.testing.assert_allclose(read(json_lines(tmp_path, sets), SETS).outputs, [[0.75, 0.25]])
    numbers = [{"text": "x", "votes": [1, 2, 4.5]}]
    np.testing.assert_allclose(read(json_lines(tmp_path, numbers), NUMBERS).outputs, [[2.5]])
    cells = [{"text": "x", "votes": "1;2;4.5"}]
    np.testing.assert_allclose(read(table(tmp_path, cells), NUMBERS).outputs, [[2.5]])


def test_probabilities_of_a_set_need_no_sum(tmp_path: Path) -> None:
    rows = [{"text": "x", "probabilities": {"a": 0.8, "b": 0.5}}]
    file = read(json_lines(tmp_path, rows), SETS)
    logits = file.kind.logits(file.outputs)
    np.testing.assert_allclose(logits, [[math.log(4), 0]], atol=1e-12)
    assert file.kind.confidence(file.outputs) == pytest.approx([0.5])
    assert file.kind.decided(file.outputs) == [(0,)]


def test_a_label_has_a_confidence_as_its_weight(tmp_path: Path) -> None:
    rows = [
        {"text": "x", "label": "a", "confidence": 0.5},
        {"text": "y", "label": "b", "confidence": 1},
        {"text": "x", "label": "b", "confidence": 0.25},
    ]
    file = read(json_lines(tmp_path, rows))
    assert file.form == "labels" and file.weights is not None
    np.testing.assert_allclose(file.of_texts([("x",), ("y",)]), [[0.5, 0.5], [0, 1]])
    np.testing.assert_allclose(file.weights_by_text, [0.375, 1])
    # probabilities say how sure a row is; a confidence beside them counts where it is named
    soft = [{**each, "confidence": 0.5} for each in SOFT]
    assert read(json_lines(tmp_path, soft)).weights is None
    named = read(json_lines(tmp_path, soft), confidence_column="confidence").weights
    np.testing.assert_allclose(named, [0.5, 0.5])


def test_numbers(tmp_path: Path) -> None:
    rows = [
        {"text": "x", "label": 3, "confidence": 0.5},
        {"text": "y", "label": "-1.5", "confidence": 1},
    ]
    file = read(json_lines(tmp_path, rows), NUMBERS)
    np.testing.assert_allclose(file.kind.logits(file.outputs), [[3], [-1.5]])
    assert file.confidence() == {("x",): 0.5, ("y",): 1}


def test_gold_labels(tmp_path: Path) -> None:
    rows = [{**SOFT[0], "gold": "a"}, {**SOFT[1], "gold": ""}]
    assert read(json_lines(tmp_path, rows)).gold == (0, NO_LABEL)
    named = [{**SOFT[0], "truth": None}, {**SOFT[1], "truth": "b"}]
    assert read(json_lines(tmp_path, named)).gold == (NO_LABEL, NO_LABEL)
    assert read(json_lines(tmp_path, named), gold_column="truth").gold == (NO_LABEL, 1)
    # a label beside probabilities is the teacher's, unless `bertender score` wrote them
    labelled = [{**each, "label": "b"} for each in SOFT]
    assert read(json_lines(tmp_path, labelled)).gold == (NO_LABEL, NO_LABEL)
    with pytest.raises(ConfigError, match="gold_column=label: it is the column of the teacher"):
        read(json_lines(tmp_path, [{"text": "x", "label": "a"}]), gold_column="label")


def scored(folder: Path) -> Path:
    parts = folder / "scored"
    parts.mkdir()
    for number, row in enumerate(SOFT):
        own = {**row, "label": "b", "predicted": "a", "truncated": False}
        json_lines(parts, [own], f"part-{number:05}.jsonl")
    (parts / "_score.json").write_text("{}")
    return parts


def test_a_folder_of_scored_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = scored(tmp_path)
    assert is_teacher_file(folder) and not is_teacher_file(tmp_path)
    file = read(folder)
    assert "has not finished there" in caplog.text
    assert file.examples == (("one",), ("two",)) and file.gold == (1, 1)
    np.testing.assert_allclose(file.outputs, [[0.25, 0.75], [1, 0]])
    (folder / "_SUCCESS").touch()
    caplog.clear()
    assert read(folder).digest == file.digest and not caplog.text
    json_lines(folder, [{**SOFT[0], "predicted": "a"}], "part-00000.jsonl")  # without a gold label
    again = read(folder)
    assert again.gold == (NO_LABEL, 1) and again.digest != file.digest


BAD: Mapping[str, tuple[str, Any, str]] = {
    "sum": (SINGLE, {"a": 0.5, "b": 0.6}, "the probabilities sum to 1.1, and must sum to 1 within"),
    "zero": (SINGLE, {"a": 0, "b": 0}, "the probabilities sum to 0"),
    "negative": (SINGLE, {"a": -0.1, "b": 1.1}, "-0.1 is not a probability from 0 to 1"),
    "percent": (
        SETS,
        {"a": 60, "b": 40},
        r"60 is not a probability from 0 to 1 \(is it in percent",
    ),
    "nan": (SINGLE, {"a": math.nan, "b": 1}, "nan is not a finite number"),
    "text": (SINGLE, {"a": "sure", "b": 1}, "'sure' is not a finite number"),
    "unknown": (SINGLE, {"a": 0.5, "c": 0.5}, "label 'c' is not one of 'a', 'b'"),
    "missing": (SINGLE, {"a": 1}, "no probability of 'b'. Write 0 if that is meant"),
    "null": (SETS, {"a": 1, "b": None}, "no probability of 'b'"),
    "one number": (SINGLE, 0.5, "0.5 is not a mapping or a list"),
    "no JSON": (SINGLE, "{a: 1}", "is not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_or_left_out(name: str, tmp_path: Path) -> None:
    problem_type, value, said = BAD[name]
    good = [{"text": str(row), "probabilities": {"a": 0.5, "b": 0.5}} for row in range(2)]
    path = json_lines(tmp_path, [*good, {"text": "bad", "probabilities": value}])
    with pytest.raises(DataError, match=f"labels.jsonl, line 3, column 'probabilities': .*{said}"):
        read(path, problem_type)
    skipping = task_of(problem_type, skip_bad_rows=True)
    file = read_teacher_file(path, skipping, TeacherColumns())
    assert len(file.examples) == 2
    assert file.left_out is not None and file.left_out.count == 1


def test_rounded_probabilities_are_made_a_distribution(tmp_path: Path) -> None:
    rows = [{"text": "x", "probabilities": {"a": 0.335, "b": 0.67}}]
    np.testing.assert_allclose(read(json_lines(tmp_path, rows)).outputs.sum(), 1)


OTHER_ROWS: Mapping[str, tuple[str, Rows, dict[str, Any], str]] = {
    "confidence": (
        SINGLE,
        [{"text": "x", "label": "a", "confidence": 90}],
        {},
        "line 1, column 'confidence': 90 is not a confidence from 0 to 1",
    ),
    "all of no weight": (
        SINGLE,
        [{"text": "x", "label": "a", "confidence": 0}],
        {},
        "all rows have confidence 0",
    ),
    "no votes": (SINGLE, [{"text": "x", "votes": []}], {}, "line 1, column 'votes': no votes"),
    "votes or a set": (SETS, [{"text": "x", "votes": "a, b"}], {}, "may be one vote or several"),
    "votes or a decimal": (NUMBERS, [{"text": "x", "votes": "3,5"}], {}, "one vote or several"),
    "counts of sets": (
        SETS,
        [{"text": "x", "votes": {"a": 2}}],
        {},
        "counts by label lack the number",
    ),
    "no counts": (SINGLE, [{"text": "x", "votes": {"a": 0}}], {}, "are not counts of votes"),
    "gold": (
        SINGLE,
        [{"text": "x", "label": "a", "gold": "c"}],
        {},
        "column 'gold': label 'c' is not one of 'a'",
    ),
    "length": (
        SINGLE,
        [{"text": "x", "probabilities": [1.0]}],
        {"labels": ("a", "b")},
        "1 probabilities for 2 labels",
    ),
    "nothing": (SINGLE, [{"text": "x", "p": 1}], {}, "no outputs to learn from: no column 'prob"),
    "no text": (SINGLE, [{"review": "x", "label": "a"}], {}, "no column 'text'"),
    "two forms": (
        SINGLE,
        SOFT,
        {"probability_columns": ("p",), "vote_columns": ("v",)},
        "Leave one out",
    ),
    "probabilities of numbers": (
        NUMBERS,
        SOFT,
        {"probability_columns": ("p",)},
        "numbers have no probabilities",
    ),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_what_cannot_be_learned_is_refused(name: str, tmp_path: Path) -> None:
    problem_type, rows, settings, said = OTHER_ROWS[name]
    with pytest.raises(BertenderError, match=said):
        read(json_lines(tmp_path, rows), problem_type, **settings)


@pytest.mark.parametrize(
    "task", [TAGGING, choice_task(), ranking_task(), answer_task(), similarity_task(), JOINT]
)
def test_kinds_without_outputs_in_a_file_are_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{task.problem.name!r}. Kinds that can be learned from"):
        read_teacher_file(json_lines(tmp_path, SOFT), task, TeacherColumns())


def test_a_label_that_is_never_or_nearly_always_given_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": str(row), "probabilities": {"a": 0.9, "b": 0.1, "c": 0}} for row in range(20)]
    check_outputs(read(json_lines(tmp_path, rows)))
    assert "no row predicts 'b', 'c'" in caplog.text
    assert "100.0 % of the rows predict 'a'" in caplog.text
    caplog.clear()
    check_outputs(read(json_lines(tmp_path, SOFT)))
    assert not caplog.text
    with pytest.raises(DataError, match="all 2 rows are labelled alike"):
        check_outputs(read(json_lines(tmp_path, [{"text": x, "label": "a"} for x in "xy"])))


def test_a_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = read(json_lines(tmp_path, SOFT))
    with pytest.raises(DataError, match=r"lacks 1 of the 2 training texts, first \('three',\)"):
        file.of_texts([("one",), ("three",)])


def test_labels_in_another_order(tmp_path: Path) -> None:
    file = read(json_lines(tmp_path, [{**SOFT[0], "gold": "a"}])).in_order(("b", "a"))
    assert file.labels == ("b", "a") and file.gold == (1,)
    np.testing.assert_allclose(file.outputs, [[0.75, 0.25]])
    with pytest.raises(ConfigError, match="has the labels 'b', 'a', and the student's are 'b'"):
        file.in_order(("b",))


def test_outputs_on_held_out_texts_are_of_either_file(tmp_path: Path) -> None:
    both = {"a": 0.4, "b": 0.6}
    file = read(json_lines(tmp_path, [*SOFT, {"text": "too", "probabilities": both}]))
    alone = held_out_outputs(file, task_of(SINGLE), TeacherColumns())
    assert {text: row.tolist() for text, row in alone.items()} == {("too",): [0.4, 0.6]}
    dev = [{"text": "held out", "label": "a", "probabilities": {"b": 0.1, "a": 0.9}}]
    task = task_of(SINGLE, dev=str(json_lines(tmp_path, dev, "dev.jsonl")))
    assert [*held_out_outputs(file, task, TeacherColumns())] == [("held out",), ("too",)]
