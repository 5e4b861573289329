"""A teacher file: texts with probabilities, votes or labels from elsewhere.

It is written by a language model, a service, annotators or `bertender score`. A student learns from
its rows as from cached teacher outputs: log-probabilities of a distribution, logits of a set's
probabilities, or numbers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import sha256_of
from bertender.core.card import CARD_NAME, LeftOutRows
from bertender.core.errors import ConfigError, DataError
from bertender.metrics.metric import is_labelled
from bertender.problems.multi_label_classification import MULTI_LABEL, SEPARATOR
from bertender.problems.problem import Problem, TextProblem
from bertender.problems.reading import CellError, shown, usable_cell
from bertender.problems.regression import REGRESSION
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.labelled import cell_error
from bertender.tasks.rows import READERS, OnBadRow, Row, SkippedRows, Table, open_table, stop
from bertender.tasks.task import Task, listed
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

PART = "part-*"
"""Names of the files in a folder written by `bertender score`."""
MANIFEST, COMPLETE = "_score.json", "_SUCCESS"
"""Files in such a folder: while it is written, and when it is complete."""
PROBABILITIES, VOTES, CONFIDENCE = "probabilities", "votes", "confidence"
GOLD, PREDICTED = "gold", "predicted"
"""Default column names; `bertender score` writes `predicted`."""
LEAST_PROBABILITY = 1e-6
"""Smallest probability, so that logarithms are finite."""
SUM_TOLERANCE = 0.01
"""Largest error of a distribution's sum, from rounding."""
NEARLY_ALL = 0.95
"""Share of rows with one label above which a warning is logged."""

Floats = npt.NDArray[np.float64]


def is_teacher_file(source: object) -> bool:
    """Return whether a path is a data file, or a folder of parts written by `bertender score`."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    if path.is_dir():
        return not (path / CARD_NAME).exists() and bool(_parts(path))
    return path.suffix.lower() in READERS


def _parts(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob(PART) if each.suffix.lower() in READERS)


class TeacherColumns(NamedTuple):
    """Settings of a teacher file: the columns to read, and the order of lists."""

    labels: tuple[str, ...] = ()
    probability_columns: tuple[str, ...] = ()
    vote_columns: tuple[str, ...] = ()
    confidence_column: str | None = None
    gold_column: str | None = None


class Kind(ABC):
    """File outputs for a kind of problem: a probability for each label, or a number."""

    problem: TextProblem[Any]
    has_probabilities: bool = True
    agreement: str
    """Metric of the agreement between two models."""
    within_a_vote: re.Pattern[str] | None = None
    """Separators of votes in a text cell that may stand within one vote too."""

    @abstractmethod
    def of_label(self, label: Any, numbers: Mapping[str, int]) -> Floats:
        """Return the outputs of a row with only a label; KeyError for an unknown one."""

    def checked(self, outputs: Floats, column: str) -> Floats:
        """Return valid outputs of a row, or raise CellError."""
        if not np.isfinite(outputs).all() or (outputs < 0).any() or (outputs > 1).any():
            wrong = outputs[~((outputs >= 0) & (outputs <= 1))][0]
            percent = " (is it in percent?)" if 1 < wrong <= 100 else ""
            raise CellError(column, f"{wrong:g} is not a probability from 0 to 1{percent}")
        return outputs

    @abstractmethod
    def logits(self, outputs: Floats) -> Floats:
        """Return the logits (rows, labels) of outputs (rows, labels)."""

    @abstractmethod
    def confidence(self, outputs: Floats) -> Floats:
        """Return the confidence of each row, (rows,); for a set, that of its least certain
        label."""

    @abstractmethod
    def decided(self, outputs: Floats) -> list[Any]:
        """Return the predicted target of each row."""


class Distributions(Kind):
    """A text has one label: its row is a distribution."""

    problem = SINGLE_LABEL
    agreement = "accuracy"

    def of_label(self, label: Any, numbers: Mapping[str, int]) -> Floats:
        found = np.zeros(len(numbers))
        found[numbers[label]] = 1.0
        return found

    def checked(self, outputs: Floats, column: str) -> Floats:
        total = float(super().checked(outputs, column).sum())
        if abs(total - 1) > SUM_TOLERANCE:
            raise CellError(
                column,
                f"the probabilities sum to {total:.4g}, and must sum to 1 within "
                f"{SUM_TOLERANCE:g}. Write more decimals; where a text has several labels, add "
                f"--problem-type {MULTI_LABEL.name}",
            )
        return np.asarray(outputs / total)

    def logits(self, outputs: Floats) -> Floats:
        return np.asarray(np.log(outputs.clip(LEAST_PROBABILITY)))

    def confidence(self, outputs: Floats) -> Floats:
        return np.asarray(outputs.max(axis=1))

    def decided(self, outputs: Floats) -> list[Any]:
        return list(map(int, outputs.argmax(axis=1)))


class SetProbabilities(Kind):
    """A text has a set of labels, each with its own probability."""

    problem = MULTI_LABEL
    agreement = "exact_match"
    within_a_vote = SEPARATOR

    def of_label(self, label: Any, numbers: Mapping[str, int]) -> Floats:
        found = np.zeros(len(numbers))
        found[[numbers[name] for name in label]] = 1.0
        return found

    def logits(self, outputs: Floats) -> Floats:
        chances = outputs.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        return np.asarray(np.log(chances) - np.log1p(-chances))

    def confidence(self, outputs: Floats) -> Floats:
        return np.asarray(np.maximum(outputs, 1 - outputs).min(axis=1))

    def decided(self, outputs: Floats) -> list[Any]:
        return [tuple(np.flatnonzero(row > 0.5).tolist()) for row in outputs]


class Numbers(Kind):
    """A text has a number."""

    problem = REGRESSION
    agreement = "pearson"
    has_probabilities = False
    within_a_vote = re.compile(",")

    def of_label(self, label: Any, numbers: Mapping[str, int]) -> Floats:
        return np.asarray([float(label)])

    def checked(self, outputs: Floats, column: str) -> Floats:
        return outputs

    def logits(self, outputs: Floats) -> Floats:
        return outputs

    def confidence(self, outputs: Floats) -> Floats:
        raise ConfigError(
            "min_confidence: the teacher's file has numbers, and no column of their confidence. "
            "Name one by confidence_column, or leave it out."
        )

    def decided(self, outputs: Floats) -> list[Any]:
        return list(map(float, outputs[:, 0]))


KINDS: Mapping[str, Kind] = {
    kind.problem.name: kind for kind in (Distributions(), SetProbabilities(), Numbers())
}
"""Kinds of problems that may have a teacher file."""


def kind_of(problem: Problem[Any]) -> Kind:
    """Return the file outputs for a kind of problem.

    Raises:
        ConfigError: a file cannot have outputs for this problem.
    """
    if (kind := KINDS.get(problem.name)) is None:
        raise ConfigError(
            f"a teacher's file has probabilities of labels, or numbers, and the task is one of "
            f"{problem.name!r}. Kinds that can be learned from a file: {', '.join(KINDS)}. Give "
            "a model as the teacher."
        )
    return kind


# Forms of a row: each reads cells, and computes a row of outputs once all labels are known.


@dataclass(frozen=True)
class Form(ABC):
    """A form of a teacher's rows."""

    columns: tuple[str, ...]
    kind: Kind

    @property
    def column(self) -> str:
        """Name of the columns in messages."""
        return ",".join(self.columns)

    @abstractmethod
    def read(self, values: Mapping[str, object]) -> Any:
        """Read the cells of a row, or raise CellError."""

    @abstractmethod
    def names(self, found: Sequence[Any]) -> tuple[str, ...]:
        """Return the labels of all rows, in the order of the logits."""

    @abstractmethod
    def outputs(self, value: Any, numbers: Mapping[str, int]) -> Floats:
        """Return the outputs of a row; KeyError for an unknown label."""


@dataclass(frozen=True)
class Probabilities(Form):
    """A probability for each label: a mapping, a list in the order of `order`, or columns."""

    order: tuple[str, ...] = ()

    def read(self, values: Mapping[str, object]) -> Mapping[str, float]:
        if len(self.columns) > 1:
            return {name: _number(usable_cell(values, name), name) for name in self.columns}
        (column,) = self.columns
        found = _parsed(usable_cell(values, column), column)
        if isinstance(found, Mapping):
            return {str(name).strip(): _number(each, column) for name, each in found.items()}
        if not isinstance(found, list | tuple):
            raise CellError(
                column,
                f"{shown(found)} is not a mapping or a list. Give a probability for each label",
            )
        if not self.order:
            raise ConfigError(
                f"column {column!r} has lists of probabilities, whose order is unknown. Give it, "
                "as --labels negative,positive."
            )
        if len(found) != len(self.order):
            raise CellError(
                column, f"{len(found)} probabilities for {len(self.order)} labels: {shown(found)}"
            )
        return {name: _number(each, column) for name, each in zip(self.order, found, strict=True)}

    def names(self, found: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
        """Return the labels of most rows: a label in a single row is a mistake."""
        ((names, _),) = Counter(frozenset(each) for each in found).most_common(1)
        return _in_order(self.kind, names)

    def outputs(self, value: Mapping[str, float], numbers: Mapping[str, int]) -> Floats:
        for name in value:
            numbers[name]
        if missing := [name for name in numbers if name not in value]:
            raise CellError(
                self.column, f"no probability of {missing[0]!r}. Write 0 if that is meant"
            )
        return self.kind.checked(np.array([value[name] for name in numbers]), self.column)


@dataclass(frozen=True)
class Labels(Form):
    """A label, a set of labels, or a number."""

    def read(self, values: Mapping[str, object]) -> Any:
        return self.kind.problem.read_label(values, self.column)

    def names(self, found: Sequence[Any]) -> tuple[str, ...]:
        return self.kind.problem.label_names(found)

    def outputs(self, value: Any, numbers: Mapping[str, int]) -> Floats:
        return self.kind.of_label(value, numbers)


@dataclass(frozen=True)
class Votes(Form):
    """Labels by several annotators: a list, counts by label, or columns.

    A row's outputs are the shares of votes; for numbers, their mean.
    """

    def read(self, values: Mapping[str, object]) -> Mapping[Any, float]:
        if len(self.columns) > 1:
            votes = [values.get(name) for name in self.columns]
        else:
            cell = usable_cell(values, self.column)
            found = _parsed(cell, self.column)
            if isinstance(found, Mapping):
                return self._counts(found)
            within = self.kind.within_a_vote
            if within and isinstance(cell, str) and cell.strip()[:1] != "[" and within.search(cell):
                raise CellError(
                    self.column,
                    f"{shown(cell)} may be one vote or several. Give a JSON list with an item for "
                    "each annotator, or a column each by --vote-columns",
                )
            votes = [*found] if isinstance(found, list | tuple) else [found]
        given = [each for each in votes if each is not None and each != ""]
        counts = Counter(self._label(each) for each in given)
        if not counts:
            raise CellError(self.column, "no votes. Fill them in, or leave the row out")
        return counts

    def _counts(self, found: Mapping[Any, object]) -> Mapping[Any, float]:
        if self.kind.problem is MULTI_LABEL:
            raise CellError(
                self.column,
                "counts by label lack the number of annotators. Give a list of each annotator's "
                "labels, or their shares as probabilities",
            )
        counts = {
            self._label(name): _number(each, self.column)
            for name, each in found.items()
            if each is not None
        }
        if min(counts.values(), default=0) < 0 or not sum(counts.values()):
            raise CellError(self.column, f"{shown(found)} are not counts of votes")
        return counts

    def _label(self, vote: object) -> Any:
        return self.kind.problem.read_label({self.column: vote}, self.column)

    def names(self, found: Sequence[Mapping[Any, float]]) -> tuple[str, ...]:
        return self.kind.problem.label_names([label for votes in found for label in votes])

    def outputs(self, value: Mapping[Any, float], numbers: Mapping[str, int]) -> Floats:
        weighted = [count * self.kind.of_label(label, numbers) for label, count in value.items()]
        return np.asarray(sum(weighted) / sum(value.values()))


def _in_order(kind: Kind, names: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
    """Return label names in the order of the logits."""
    found: Any = [*names]
    return kind.problem.label_names([tuple(found)] if kind.problem is MULTI_LABEL else found)


def _parsed(value: object, column: str) -> Any:
    """Parse a structured cell: a value, JSON, or comma-separated text; a Parquet map becomes a
    dict."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise CellError(column, f"{shown(value)} is not JSON: {error}") from None
    if isinstance(value, str):
        return [each.strip() for each in SEPARATOR.split(value) if each.strip()]
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return dict(value)
    if isinstance(value, Mapping):  # a struct has all labels, with null for those that a row lacks
        return {name: each for name, each in value.items() if each is not None}
    return value


def _number(value: object, column: str) -> float:
    """Return a finite number, or raise CellError."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise CellError(column, f"{shown(value)} is not a finite number. Give one, such as 0.93")
    return found


@dataclass(frozen=True)
class Plan:
    """The roles of a table's columns."""

    form: Form
    confidence: str | None
    gold: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns with a role."""
        return (*self.form.columns, *filter(None, (self.confidence, self.gold)))


def plan_of(there: Sequence[str], task: Task, own: TeacherColumns, label_column: str) -> Plan:
    """Return the roles of columns: from the settings, else by their default names.

    Args:
        there: columns in the file.
        task: task, whose labels may be names of columns.
        own: settings of the teacher file.
        label_column: label column of the task's files.

    Raises:
        ConfigError: two settings conflict.
    """
    kind = kind_of(task.problem)
    if own.probability_columns and own.vote_columns:
        raise ConfigError(
            f"probability_columns={','.join(own.probability_columns)} and "
            f"vote_columns={','.join(own.vote_columns)}: a row has either. "
            "Leave one out."
        )
    if own.probability_columns and not kind.has_probabilities:
        raise ConfigError(
            f"probability_columns={','.join(own.probability_columns)}: numbers have no "
            "probabilities. Leave it out, and name the column of the number by label_column."
        )
    form = _form(there, kind, task, own, label_column)
    confidence = own.confidence_column
    if confidence is None and isinstance(form, Labels) and CONFIDENCE in there:
        confidence = CONFIDENCE
    gold = own.gold_column
    if gold is None:
        # beside `predicted`, the label column is the gold label
        usual = (GOLD, *((label_column,) if PREDICTED in there else ()))
        gold = next((name for name in usual if name in there and name not in form.columns), None)
    if gold in form.columns:
        raise ConfigError(
            f"gold_column={gold}: it is the column of the teacher's outputs. Give another, or "
            "leave it out."
        )
    return Plan(form, confidence, gold)


def _form(
    there: Sequence[str], kind: Kind, task: Task, own: TeacherColumns, label_column: str
) -> Form:
    """Return the form of rows with these columns; arguments are those of `plan_of`."""
    if own.vote_columns:
        return Votes(own.vote_columns, kind)
    if own.probability_columns:
        return Probabilities(own.probability_columns, kind, own.labels)
    if kind.has_probabilities:
        if PROBABILITIES in there:
            return Probabilities((PROBABILITIES,), kind, own.labels)
        columns = own.labels or task.labels
        if len(columns) > 1 and {*columns} <= {*there}:
            return Probabilities(tuple(columns), kind)
    if VOTES in there:
        return Votes((VOTES,), kind)
    column = PREDICTED if PREDICTED in there else label_column
    return Labels(kind.problem.label_columns(column), kind)


@dataclass(frozen=True)
class TeacherFile:
    """The rows of a teacher file."""

    path: Path
    digest: str
    """sha256 of the file, or of all parts' sha256."""
    kind: Kind
    labels: tuple[str, ...]
    """Labels in the order of the logits."""
    form: str
    """Form of its rows: Probabilities, Labels or Votes."""
    examples: tuple[Example, ...]
    outputs: Floats
    """(rows, labels); (rows, 1) for numbers"""
    weights: Floats | None = None
    """(rows,), if rows have a confidence."""
    gold: tuple[Any, ...] = ()
    """Gold target of each row; `unlabelled` ones if missing."""
    left_out: LeftOutRows | None = field(default=None, compare=False)

    @functools.cached_property
    def rows(self) -> Mapping[Example, int]:
        """Each distinct text and its index, in order."""
        return {text: number for number, text in enumerate(dict.fromkeys(self.examples))}

    def in_order(self, labels: Sequence[str]) -> TeacherFile:
        """Return the file with its labels in another order.

        Raises:
            ConfigError: the labels differ.
        """
        if {*labels} != {*self.labels}:
            raise ConfigError(
                f"the teacher {self.path} has the labels {listed(self.labels)}, and the student's "
                f"are {listed(labels)}. Give one with the same labels."
            )
        order = [self.labels.index(label) for label in labels]
        numbers = {label: number for number, label in enumerate(labels)}
        problem = self.kind.problem
        gold = (
            problem.number(problem.by_names(target, self.labels), numbers)
            if is_labelled(target)
            else target
            for target in self.gold
        )
        outputs = self.outputs[:, order]
        return replace(self, labels=tuple(labels), outputs=outputs, gold=tuple(gold))

    def _by_text(self, values: Floats) -> Floats:
        """Return the mean over rows with the same text, (texts, ...)."""
        numbers = np.array([self.rows[example] for example in self.examples])
        total = np.zeros((len(self.rows), *values.shape[1:]))
        np.add.at(total, numbers, values)
        counts = np.bincount(numbers, minlength=len(self.rows))
        return np.asarray(total / counts.reshape(-1, *(1,) * (values.ndim - 1)))

    @functools.cached_property
    def outputs_by_text(self) -> Floats:
        """Outputs for each distinct text."""
        return self._by_text(self.outputs)

    @functools.cached_property
    def weights_by_text(self) -> Floats | None:
        """Confidence of each distinct text."""
        return None if self.weights is None else self._by_text(self.weights)

    @functools.cached_property
    def gold_by_text(self) -> Mapping[Example, Any]:
        """The first gold label of each text with one."""
        pairs = zip(reversed(self.examples), reversed(self.gold), strict=True)
        return {example: target for example, target in pairs if is_labelled(target)}

    def numbers(self, examples: Sequence[Example]) -> list[int]:
        """Return the indices of texts.

        Raises:
            DataError: the file lacks some of them.
        """
        missing = [example for example in examples if example not in self.rows]
        if missing:
            raise DataError(
                f"{self.path}: it lacks {len(missing)} of the {len(examples)} training texts, "
                f"first {shown(missing[0])}. Give a file that has all of them."
            )
        return [self.rows[example] for example in examples]

    def of_texts(self, examples: Sequence[Example]) -> Floats:
        """Return the outputs for texts, (texts, labels); errors are those of `numbers`."""
        return np.asarray(self.outputs_by_text[self.numbers(examples)])

    def confidence(self) -> Mapping[Example, float]:
        """Return the confidence of each text, from its column or its probabilities."""
        found = self.weights_by_text
        found = self.kind.confidence(self.outputs_by_text) if found is None else found
        return dict(zip(self.rows, map(float, found), strict=True))


def read_teacher_file(
    path: Path, task: Task, own: TeacherColumns, bad: OnBadRow | None = None
) -> TeacherFile:
    """Read a teacher file, or all parts of a folder.

    Args:
        path: a file of READERS, or a folder of parts.
        task: task with the problem type, and the labels of held-out texts.
        own: settings of the teacher file.
        bad: called with each bad row; by default according to the task's settings.

    Raises:
        ConfigError: files have no outputs for the kind of problem, or a list has no order.
        DataError: a column is missing, or a row cannot be used.
    """
    kind = kind_of(task.problem)
    skipped = SkippedRows()
    handle = bad or (skipped if task.skips_bad_rows else stop)
    files = _parts(path) if path.is_dir() else [path]
    label_column = str(task.source.get("label_column") or kind.problem.columns.label)
    tables = [open_table(file, handle) for file in files]
    there = tuple(dict.fromkeys(name for table in tables for name in table.columns))
    texts = task.text_columns
    if len(texts) == 1 and texts[0] not in there and kind.problem.columns.texts[0] in there:
        texts = kind.problem.columns.texts  # named tasks have their own columns
    plan = plan_of(there, task, own, label_column)
    _check_columns(path, there, plan)
    if (path / MANIFEST).exists() and not (path / COMPLETE).exists():
        logger.warning("%s: `bertender score` has not finished there: some texts are missing", path)
    found = [row for table in tables for row in _raw_rows(table, plan, texts, handle)]
    if not found:
        raise DataError(f"{path}: no rows that can be used.")
    labels = (
        _in_order(kind, own.labels)
        if own.labels
        else plan.form.names([each.value for each in found])
    )
    numbers = {label: number for number, label in enumerate(labels)}
    whole = [*_whole_rows(found, plan, numbers, handle)]
    if not whole:
        raise DataError(f"{path}: no row has the labels {listed(labels)}.")
    digests = [sha256_of(file) for file in files]
    weights = np.array([each.raw.weight for each in whole]) if plan.confidence else None
    if weights is not None and not weights.any():
        raise DataError(f"{path}, column {plan.confidence!r}: all rows have confidence 0.")
    made = TeacherFile(
        path=path,
        digest=digests[0]
        if path.is_file()
        else hashlib.sha256(" ".join(digests).encode()).hexdigest(),
        kind=kind,
        labels=labels,
        form=type(plan.form).__name__.lower(),
        examples=tuple(each.raw.example for each in whole),
        outputs=np.stack([each.outputs for each in whole]),
        weights=weights,
        gold=tuple(each.gold for each in whole),
        left_out=skipped.report() if bad is None else None,
    )
    columns = {"teacher": plan.form.column, "weight": plan.confidence, "gold": plan.gold}
    said = ", ".join(f"{role} {name!r}" for role, name in columns.items() if name)
    logger.info("%s: %d rows, columns: %s", path, len(made.examples), said)
    return made


def held_out_outputs(
    file: TeacherFile, task: Task, own: TeacherColumns
) -> Mapping[Example, Floats]:
    """Return a teacher's outputs for held-out texts: from its file, and from a held-out file with
    probabilities.

    Args:
        file: teacher file.
        task: task with the held-out texts.
        own: settings of the teacher file.
    """
    known = dict(zip(file.rows, file.outputs_by_text, strict=True))
    path, columns = task.source.get("dev"), own.probability_columns or (PROBABILITIES,)
    if path and file.kind.has_probabilities:
        # label columns may be gold labels there
        there = open_table(Path(path), lambda error: None).columns
        if {*columns} <= {*there} and not {*columns} & {*task.labels}:
            settings = own._replace(probability_columns=columns, gold_column=None)
            theirs = read_teacher_file(Path(path), task, settings, lambda error: None)
            if theirs.labels == file.labels:
                known |= zip(theirs.rows, theirs.outputs_by_text, strict=True)
    return {text: known[text] for text in task.dev.examples if text in known}


def check_outputs(file: TeacherFile) -> None:
    """Warn of a teacher that never predicts a label, or nearly always the same.

    Raises:
        DataError: all rows have the same hard label, or the same number.
    """
    decided = file.kind.decided(file.outputs)
    hard = file.form == "labels"
    if hard and len({*decided}) == 1:
        raise DataError(
            f"{file.path}: all {len(decided)} rows are labelled alike. Nothing can be "
            "learned from them."
        )
    if not file.kind.problem.names_labels:
        return
    counts = Counter(number for each in decided for number in file.kind.problem.labels_of(each))
    if never := [name for number, name in enumerate(file.labels) if not counts[number]]:
        logger.warning("%s: no row predicts %s", file.path, listed(never))
    (most, count) = counts.most_common(1)[0] if counts else (0, 0)
    if count >= NEARLY_ALL * len(decided) and file.kind.problem is SINGLE_LABEL:
        logger.warning(
            "%s: %.1f %% of the rows predict %r. A student may learn that answer alone",
            *(file.path, 100 * count / len(decided), file.labels[most]),
        )


class _Raw(NamedTuple):
    """A row as read from the file."""

    file: Path
    place: str
    example: Example
    value: Any
    weight: float
    gold: Any


class _Whole(NamedTuple):
    raw: _Raw
    outputs: Floats
    gold: Any


def _check_columns(path: Path, there: Sequence[str], plan: Plan) -> None:
    """Raise DataError if no column has outputs, and none was named."""
    columns = plan.form.columns
    if isinstance(plan.form, Labels) and not {*columns} <= {*there}:
        raise DataError(
            f"{path}: no outputs to learn from: no column {PROBABILITIES!r}, none for each label, "
            f"no {VOTES!r} and no {plan.form.column!r}. Columns: {', '.join(there)}. Name those of "
            "your file by --probability-columns, --vote-columns or --label-column."
        )


def _raw_rows(table: Table, plan: Plan, texts: Sequence[str], bad: OnBadRow) -> Iterator[_Raw]:
    # a part of a folder may have no gold labels
    columns = (name for name in plan.columns if name != plan.gold or name in table.columns)
    for row in table.rows(tuple(dict.fromkeys((*texts, *columns)))):
        try:
            yield _raw(row, table.path, plan, texts)
        except CellError as error:
            bad(cell_error(table.path, row.place, error))


def _raw(row: Row, path: Path, plan: Plan, texts: Sequence[str]) -> _Raw:
    problem, weight = plan.form.kind.problem, 1.0
    example = problem.read_texts(row.values, texts)
    if plan.confidence is not None:
        weight = _number(usable_cell(row.values, plan.confidence), plan.confidence)
        if not 0 <= weight <= 1:
            raise CellError(plan.confidence, f"{weight:g} is not a confidence from 0 to 1")
    gold = row.values.get(plan.gold) if plan.gold else None
    is_empty = gold is None or gold == "" or (isinstance(gold, float) and math.isnan(gold))
    own = None if is_empty else problem.read_label(row.values, plan.gold or "")
    return _Raw(path, row.place, example, plan.form.read(row.values), weight, own)


def _whole_rows(
    found: Sequence[_Raw], plan: Plan, numbers: Mapping[str, int], bad: OnBadRow
) -> Iterator[_Whole]:
    """Yield rows with their outputs, once the labels are known."""
    problem = plan.form.kind.problem
    for raw in found:
        column = plan.form.column
        try:
            outputs = plan.form.outputs(raw.value, numbers)
            column = plan.gold or ""
            gold = problem.unlabelled(raw.example)
            if raw.gold is not None:
                gold = problem.number(raw.gold, numbers)
        except KeyError as unknown:
            error = CellError(
                column,
                f"label {unknown.args[0]!r} is not one of {listed([*numbers])}. Correct it, or "
                "name all labels by --labels",
            )
            bad(cell_error(raw.file, raw.place, error))
        except CellError as error:
            bad(cell_error(raw.file, raw.place, error))
        else:
            yield _Whole(raw, outputs, gold)
