"""Examples of a data file, with or without labels, checked row by row."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertender.core.errors import DataError, RowError
from bertender.metrics.metric import is_labelled
from bertender.problems.multi_label_classification import MULTI_LABEL, YES_OR_NO
from bertender.problems.problem import Problem
from bertender.problems.reading import CellError, Columns, shown
from bertender.problems.regression import REGRESSION
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.rows import OnBadRow, SkippedRows, Table, lines_of, open_table, stop
from bertender.tasks.task import Split, default_of, listed
from bertender.text.batch import Example, is_blank

logger = logging.getLogger(__name__)

SHOWN_VALUES = 6
MOST_RATINGS = 10
"""Most different fractional parts of ratings, such as tenths."""
MANY = 50
"""More labels than a small sample, or a few examples per class, has by chance."""
NEARLY_EACH = 0.9
"""Share of rows with a label of their own: with 77 classes, 50 random rows have 0.74."""
LINES = (".txt", ".txt.xz")
"""Suffixes of files with one text per line."""


@dataclass(frozen=True)
class Labelled:
    """Examples of a file, their labels as written there, and their places."""

    path: Path
    label_column: str
    examples: tuple[Example, ...]
    labels: tuple[Any, ...]
    places: tuple[str, ...]
    problem: Problem[Any] = SINGLE_LABEL

    def split(self, known: Sequence[str], owner: str, bad: OnBadRow = stop) -> Split:
        """Number the labels by their position in `known`, the labels of `owner`.

        Raises:
            DataError: a label is unknown and `bad` stops, or no row has a known label.
        """
        numbers = {label: number for number, label in enumerate(known)}
        problem = self.problem.of_labels(known)
        rows, unknown = [], SkippedRows()
        for place, label, example in zip(self.places, self.labels, self.examples, strict=True):
            try:
                rows.append((example, problem.number(label, numbers)))
            except KeyError as missing:
                error = RowError(
                    self.path,
                    f"{place}, column {self.label_column!r}",
                    f"label {missing.args[0]!r} is not one of the labels of {owner}: "
                    f"{listed(known)}. Correct it, or add examples of it to the training file.",
                )
                bad(error)
                unknown(error)
        if not rows:
            raise DataError(
                f"{self.path}: no row has one of the labels {listed(known)}{_first(unknown)} "
                f"Is --label-column {self.label_column} right, and the file of this task?"
            )
        examples, label_ids = zip(*rows, strict=True)
        return Split(examples, label_ids)


def label_names(labelled: Labelled, *, several: bool = True) -> tuple[str, ...]:
    """Return the labels of a training file, in the order of the logits.

    Raises:
        DataError: there is only one class or number, or only empty sets; or the labels of sets are
            0 and 1.
    """
    problem = labelled.problem
    for place, kind in enumerate(problem.heads.values()):
        column = problem.label_columns(labelled.label_column)[place]
        own = tuple(each[place] for each in labelled.labels if is_labelled(each[place]))
        if not own:
            raise DataError(f"{labelled.path}, column {column!r}: no row has a label.")
        if kind is MULTI_LABEL and (without := len(labelled.labels) - len(own)):
            logger.warning(
                "%s, column %r: %d of %d rows are empty, and this head does not learn from them. "
                "Where a text has none of the labels, write [] instead",
                *(labelled.path, column, without, len(labelled.labels)),
            )
        label_names(
            replace(labelled, label_column=column, labels=own, problem=kind), several=several
        )
    names = problem.label_names(labelled.labels)
    where = f"{labelled.path}, column {labelled.label_column!r}"
    all_rows = f"{where}: all {len(labelled.labels)} rows have"
    if problem is MULTI_LABEL:
        _check_sets(labelled, names, where)
    if several and problem in (SINGLE_LABEL, TOKEN_CLASSIFICATION) and len(names) == 1:
        raise DataError(
            f"{all_rows} the label {names[0]!r}. A classifier needs examples of at least two."
        )
    if several and problem is REGRESSION and len(set(labelled.labels)) == 1:
        only = labelled.labels[0]
        raise DataError(f"{all_rows} the number {only:g}. A model needs several to learn from.")
    return names


def _check_sets(labelled: Labelled, names: Sequence[str], where: str) -> None:
    """Raise DataError for sets without labels; warn of named columns without a positive row."""
    if not names:
        raise DataError(
            f"{where}: all {len(labelled.labels)} sets are empty. Is --label-column right?"
        )
    if set(names) <= YES_OR_NO.keys() and all(len(own) == 1 for own in labelled.labels):
        raise DataError(
            f"{where}: its labels would be {listed(names)}. Where each label has a column of 0 and "
            f"1, name them all by commas; one column alone is --problem-type {SINGLE_LABEL.name}."
        )
    if everywhere := [name for name in names if all(name in own for own in labelled.labels)]:
        logger.warning(
            "%s: all %d rows have %s, so that a model of these rows learns nothing of it: add rows "
            "without, or leave the label out",
            *(where, len(labelled.labels), listed(everywhere)),
        )
    columns = labelled.problem.label_columns(labelled.label_column)
    nowhere = [column for column in columns if column not in names]
    if len(columns) > 1 and nowhere:
        logger.warning(
            "%s: no row has %s, so that a model of these rows has no such label",
            labelled.path,
            listed(nowhere),
        )


def check_classes(labelled: Labelled) -> None:
    """Raise DataError if the labels of a training file seem to be from another column than classes.

    Numbers are scores if there are many and some lie between halves (a rating may be 3.5), or if
    few rows share one. Names are identifiers if nearly every row has its own. A hundred topics, as
    numbers or names, are classes.
    """
    counts = Counter(labelled.labels)
    rows, numbers = len(labelled.labels), [*map(_number, counts)]
    values = [number for number in numbers if number is not None]
    all_numbers = len(values) == len(counts)
    between = any(2 * value % 1 for value in values)
    if all_numbers and between and len(counts) > MOST_RATINGS:
        looks = "scores"
    elif all_numbers and len(counts) >= MANY and rows < 2 * len(counts):
        looks = "scores or row numbers"
    elif rows >= MANY and len(counts) >= NEARLY_EACH * rows:
        looks = "texts or names of rows"
    else:
        return
    examples = ", ".join(map(shown, islice(counts, SHOWN_VALUES)))
    raise DataError(
        f"{labelled.path}, column {labelled.label_column!r}: {len(counts)} different values in "
        f"{rows} rows look like {looks}, not like classes: {examples}, ... Is --label-column "
        f"right? To predict numbers, add --problem-type {REGRESSION.name}. If each value is a "
        f"class, add --problem-type {SINGLE_LABEL.name}."
    )


def _number(label: str) -> float | None:
    """Return the number in a label, with a decimal point or comma."""
    try:
        number = float(label.replace(",", "."))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_labelled(
    table: Table,
    text_columns: Sequence[str],
    label_column: str,
    problem: Problem[Any] = SINGLE_LABEL,
    beside: Example | None = None,
) -> Labelled:
    """Read and check all rows of a table; texts are stripped.

    Args:
        table: open table.
        text_columns, label_column: columns to read.
        problem: kind of problem, which reads the cells.
        beside: first example of the task's other file; None if this is the first file.

    Raises:
        DataError: a column is missing, there are no rows, or a text or label cannot be used and
            `table.bad` stops.
    """
    columns = Columns(tuple(text_columns), label_column)
    unusable = SkippedRows()

    def bad(error: RowError) -> None:
        table.bad(error)
        unusable(error)

    def read() -> Iterator[_Read]:
        first = beside
        for row in table.rows((*text_columns, *problem.label_columns(label_column))):
            try:
                example, label = problem.read(row.values, columns)
                problem.check_beside(example, first or example, columns)
                part_of = problem.part_of(row.values, columns.texts)
            except CellError as error:
                bad(cell_error(table.path, row.place, error))
                continue
            first = first or example
            yield _Read(row.place, example, label, part_of)

    whole = [*_whole(read(), table.path, columns, problem, bad)]
    examples = tuple(each.example for each in whole)
    if not examples and not unusable.count:
        raise DataError(f"{table.path}: no rows that can be used, only the names of the columns.")
    if not examples:
        named = zip(("--text-column", "--pair-column"), text_columns, strict=False)
        flags = [*(f"{flag} {name}" for flag, name in named), f"--label-column {label_column}"]
        raise DataError(
            f"{table.path}: no rows that can be used{_first(unusable)} Are {' and '.join(flags)} "
            "right?"
        )
    labels, places = tuple(each.label for each in whole), tuple(each.place for each in whole)
    return Labelled(table.path, label_column, examples, labels, places, problem)


class _Read(NamedTuple):
    """A row as read from the file."""

    place: str
    example: Example
    label: Any
    part_of: str | None


def _whole(
    read: Iterable[_Read],
    path: Path,
    columns: Columns,
    problem: Problem[Any],
    bad: Callable[[RowError], None],
) -> Iterator[_Read]:
    """Yield rows, with those of one example merged at the position of the first."""
    groups: list[list[_Read]] = []
    known: dict[str, list[_Read]] = {}
    for row in read:
        if row.part_of in known:
            known[row.part_of].append(row)
            continue
        groups.append([row])
        if row.part_of is not None:
            known[row.part_of] = groups[-1]
    for rows in groups:
        try:
            example, label = problem.whole([(row.example, row.label) for row in rows], columns)
        except CellError as error:
            bad(cell_error(path, rows[0].place, error))
        else:
            yield _Read(rows[0].place, example, label, rows[0].part_of)


def _first(skipped: SkippedRows) -> str:
    """Return the number of rows left out, and the error of the first."""
    row = skipped.first[0]
    return f"; rows left out: {skipped.count}, the first at {row.place}: {row.reason}"


def cell_error(path: Path, place: str, error: CellError) -> RowError:
    """Return the error for a cell, with its row and column."""
    return RowError(path, f"{place}, column {error.column!r}", f"{error.problem}.")


@dataclass(frozen=True)
class PlacedTexts:
    """Texts of a file, and their places; the count includes blank rows and rows left out."""

    examples: tuple[Example, ...]
    places: tuple[str, ...]
    columns: tuple[str, ...]
    """Text columns; empty for a file with one text per line."""
    blank: tuple[str, ...] = ()
    """Places of empty lines, which are left out of a file with one text per line."""


def read_texts(
    path: Path, text_columns: Sequence[str], bad: OnBadRow = stop
) -> tuple[Example, ...]:
    """Read texts without labels; arguments and errors are those of `read_placed_texts`."""
    return read_placed_texts(path, text_columns, bad).examples


def read_placed_texts(
    path: Path,
    text_columns: Sequence[str],
    bad: OnBadRow = stop,
    problem: Problem[Any] = SINGLE_LABEL,
) -> PlacedTexts:
    """Read texts without labels: from the text columns of a table, or from LINES with one text per
    line.

    Args:
        path: the file.
        text_columns: one, or two for pairs; for problems with their own columns, those that the
            user named.
        bad: called with each row that cannot be used.
        problem: how the texts of a row are read.

    Raises:
        DataError: the file is wrong, or it has one text per line and the examples are pairs.
    """
    columns: tuple[str, ...] = ()
    if path.name.lower().endswith(LINES):
        rows = [*_lines(path, problem.columns.texts if problem.takes_list else text_columns, bad)]
    else:
        table = open_table(path, bad, others=LINES)
        first, usual = text_columns[0], problem.columns.texts[0]
        if first == default_of("text_column") not in table.columns and usual in table.columns:
            first = usual
        more = problem.more_columns(",".join(text_columns[1:]) or None, table.columns)
        columns = (first, *more)
        rows = [*example_rows(table, Columns(columns, ""), problem)]
    texts = [row for row in rows if not is_blank(row[1][0])]
    if not texts:
        raise DataError(f"{path}: the file has no texts.")
    places, examples = zip(*texts, strict=True)
    blank = tuple(place for place, (first, *_) in rows if is_blank(first))
    if columns:
        columns = problem.text_names(Columns(columns, ""), examples[0])
    return PlacedTexts(examples, places, columns, blank)


def example_rows(
    table: Table, columns: Columns, problem: Problem[Any]
) -> Iterator[tuple[str, Example]]:
    """Yield the place and the texts of each example of a table, without its label."""

    def read() -> Iterator[_Read]:
        first: Example | None = None
        for row in table.rows(columns.texts):
            try:
                example = problem.read_texts(row.values, columns.texts)
                problem.check_beside(example, first or example, columns)
                part_of = problem.part_of(row.values, columns.texts)
            except CellError as error:
                table.bad(cell_error(table.path, row.place, error))
            else:
                first = first or example
                yield _Read(row.place, example, None, part_of)

    for row in _whole(read(), table.path, columns, problem, table.bad):
        yield row.place, row.example


def _lines(path: Path, text_columns: Sequence[str], bad: OnBadRow) -> Iterator[tuple[str, Example]]:
    if len(text_columns) > 1:
        raise DataError(
            f"{path}: a line holds one text, and the examples have {', '.join(text_columns)}. "
            "Give a table with these columns: CSV, TSV, JSONL or Parquet."
        )
    return ((place, (line.strip(),)) for place, line in lines_of(path, bad))
