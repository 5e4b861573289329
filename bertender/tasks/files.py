"""Tasks of the user's own: a training file and a held-out file, checked row by row.

Whatever is wrong in them is a DataError that names the file, the row and the column. With
`skip_bad_rows`, rows that are wrong are left out instead; a file that is wrong still stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.core.errors import ConfigError, DataError, RowError
from bertender.problems import (
    PROBLEMS,
    SINGLE_LABEL,
    TOKEN_CLASSIFICATION,
    CellError,
    Columns,
    ProblemType,
)
from bertender.problems.cells import text_of_cell
from bertender.tasks.bad_rows import OnBadRow, SkippedRows, stop
from bertender.tasks.rows import Row, Table, open_table
from bertender.tasks.task import Split, Task, TaskConfig, default_of
from bertender.tasks.utf8 import lines_of
from bertender.tasks.word_rows import WORD_SUFFIXES, open_words
from bertender.text.example import Example

__all__ = [
    "Labelled",
    "label_names",
    "load_files",
    "problem_type_of",
    "read_labelled",
    "read_texts",
]

SHOWN_LABELS = 20


@dataclass(frozen=True)
class Labelled:
    """The examples of one file with their labels as they stand there, and their places."""

    path: Path
    label_column: str
    examples: tuple[Example, ...]
    labels: tuple[Any, ...]
    places: tuple[str, ...]
    problem: ProblemType[Any] = SINGLE_LABEL

    def split(self, known: Sequence[str], owner: str, bad: OnBadRow = stop) -> Split:
        """Number the labels by their place in `known`, the labels of `owner`.

        Raises:
            DataError: a label is none of them and `bad` stops, or no row has one of them.
        """
        numbers = {label: number for number, label in enumerate(known)}
        rows, unknown = [], SkippedRows()
        for place, label, example in zip(self.places, self.labels, self.examples, strict=True):
            try:
                rows.append((example, self.problem.number(label, numbers)))
            except KeyError as missing:
                error = self._unknown(place, missing.args[0], known, owner)
                bad(error)
                unknown(error)
        if not rows:
            raise DataError(
                f"{self.path}: no row has one of the labels {_listed(known)}{_first(unknown)} "
                f"Is --label-column {self.label_column} right, and the file of this task?"
            )
        examples, label_ids = zip(*rows, strict=True)
        return Split(examples, label_ids)

    def _unknown(self, place: str, label: str, known: Sequence[str], owner: str) -> RowError:
        return RowError(
            self.path,
            f"{place}, column {self.label_column!r}",
            f"label {label!r} is none of the labels of {owner}: {_listed(known)}. Correct it, or "
            "add examples of it to the training file.",
        )


def load_files(config: TaskConfig) -> Task:
    """Load the task that `config.train` and `config.dev` hold; labels are sorted.

    Raises:
        ConfigError: only one of the files is set, or two columns are the same.
        DataError: a file is wrong.
    """
    train_path, dev_path = _both_files(config)
    problem = PROBLEMS[problem_type_of(config)]
    open_file = open_words if problem.predicts == "word" else open_table
    skipped = SkippedRows()
    bad = skipped if config.skip_bad_rows else stop
    train_table = open_file(train_path, bad)
    text_columns, label_column = _distinct_columns(config, problem, train_table.columns)

    def read(table: Table) -> Labelled:
        return read_labelled(table, text_columns, label_column, problem)

    train, dev = read(train_table), read(open_file(dev_path, bad))
    labels = label_names(train)
    splits = [each.split(labels, str(train_path), bad) for each in (train, dev)]
    return Task(
        name=_name(config, train_path),
        labels=labels,
        metric=problem.metrics[0],
        text_columns=text_columns,
        train=splits[0],
        dev=splits[1],
        source={"text_column": text_columns[0], "label_column": label_column},
        left_out=skipped.report(),
        problem_type=problem.name,
    )


def problem_type_of(config: TaskConfig) -> str:
    """Return the problem type of a task of files: as set, or by the suffix of the file."""
    own = config.train is not None and config.train.suffix.lower() in WORD_SUFFIXES
    guessed = TOKEN_CLASSIFICATION if own else SINGLE_LABEL
    return config.problem_type or guessed.name


def read_labelled(
    table: Table,
    text_columns: Sequence[str],
    label_column: str,
    problem: ProblemType[Any] = SINGLE_LABEL,
) -> Labelled:
    """Read and check all rows of a table; texts lose the white space around them.

    Raises:
        DataError: a column is missing, there are no rows, or a text or label cannot be used and
            `table.bad` stops.
    """
    table.require((*text_columns, label_column))
    columns = Columns(tuple(text_columns), label_column)
    examples, labels, places, unusable = [], [], [], SkippedRows()
    for row in table.rows:
        try:
            example, label = _cells(table.path, row, problem, columns)
        except RowError as error:
            table.bad(error)
            unusable(error)
            continue
        examples.append(example)
        labels.append(label)
        places.append(row.place)
    if not examples:
        raise _no_rows(table.path, text_columns, label_column, unusable)
    parts = tuple(examples), tuple(labels), tuple(places)
    return Labelled(table.path, label_column, *parts, problem)


def _no_rows(
    path: Path, text_columns: Sequence[str], label_column: str, unusable: SkippedRows
) -> DataError:
    """Return the error of a table without usable rows."""
    if not unusable.count:
        return DataError(f"{path}: no rows that can be used, only the names of the columns.")
    columns = zip(("--text-column", "--pair-column"), text_columns, strict=False)
    flags = [*(f"{flag} {name}" for flag, name in columns), f"--label-column {label_column}"]
    return DataError(
        f"{path}: no rows that can be used{_first(unusable)} Are {' and '.join(flags)} right?"
    )


def _first(skipped: SkippedRows) -> str:
    """Return how many rows were left out, and why the first one was."""
    row = skipped.first[0]
    return f"; rows left out: {skipped.count}, the first at {row.place}: {row.reason}"


def read_texts(
    path: Path, text_columns: Sequence[str], bad: OnBadRow = stop
) -> tuple[Example, ...]:
    """Read texts without labels: a table with the text columns, or `.txt` with a text a line.

    Args:
        path: the file.
        text_columns: one, or two for pairs.
        bad: called with each row that cannot be used.

    Raises:
        DataError: the file is wrong, or it is `.txt` and the examples are pairs.
    """
    if path.suffix.lower() == ".txt":
        return _lines(path, text_columns, bad)
    table = open_table(path, bad)
    table.require(text_columns)
    examples = []
    for row in table.rows:
        try:
            examples.append(_example(path, row, text_columns))
        except RowError as error:
            bad(error)
    return _some(path, tuple(examples))


def label_names(labelled: Labelled) -> tuple[str, ...]:
    """Return the labels of a training file, in the order of the logits.

    Raises:
        DataError: there is one class only.
    """
    names = labelled.problem.labels(labelled.labels)
    if len(names) == 1:
        raise DataError(
            f"{labelled.path}, column {labelled.label_column!r}: all {len(labelled.labels)} rows "
            f"have the label {names[0]!r}. A classifier needs examples of at least two."
        )
    return names


def _lines(path: Path, text_columns: Sequence[str], bad: OnBadRow) -> tuple[Example, ...]:
    if len(text_columns) > 1:
        raise DataError(
            f"{path}: a line holds one text, and the examples have {', '.join(text_columns)}. "
            "Give a table with these columns: CSV, TSV, JSONL or Parquet."
        )
    lines = (line.strip() for line in lines_of(path, bad))
    return _some(path, tuple((line,) for line in lines if line))


def _some(path: Path, examples: tuple[Example, ...]) -> tuple[Example, ...]:
    if not examples:
        raise DataError(f"{path}: it holds no text.")
    return examples


def _both_files(config: TaskConfig) -> tuple[Path, Path]:
    if config.train is None or config.dev is None:
        explicit, missing = ("--train", "--dev") if config.train else ("--dev", "--train")
        raise ConfigError(
            f"{explicit} {config.train or config.dev} is set without {missing}. A task of your "
            "own needs both: a file to learn from, and one that is held out."
        )
    return config.train, config.dev


def _distinct_columns(
    config: TaskConfig, problem: ProblemType[Any], there: Sequence[str]
) -> Columns:
    """Return which of a file's columns to read, after a check that no column has two roles."""
    pair = () if config.pair_column is None else (config.pair_column,)
    if pair and problem.predicts == "word":
        raise ConfigError(
            f"--pair-column {config.pair_column}: a task of {problem.name!r} has one list of words "
            "an example. Leave it out."
        )
    first = _column(config, "text_column", problem.columns.texts[0], there)
    label = _column(config, "label_column", problem.columns.label, there)
    columns = Columns((first, *pair), label)
    if len({*columns.texts, label}) <= len(columns.texts):
        paired = f"--pair-column {config.pair_column}, " if config.pair_column else ""
        raise ConfigError(
            f"{paired}--text-column {first} and --label-column {label} must be different columns."
        )
    return columns


def _column(config: TaskConfig, setting: str, usual: str, there: Sequence[str]) -> str:
    """Return the column that a setting names, or the one that is usual for the problem type.

    A setting at its default may be either, and is the one that the file has.
    """
    value = str(getattr(config, setting))
    if value != default_of(setting):
        return value
    candidates = (value, usual) if config.is_explicit(setting) else (usual, value)
    return next((name for name in candidates if name in there), candidates[0])


def _name(config: TaskConfig, train: Path) -> str:
    """Return the name the user gave, else the file's, or its folder's for a file called train."""
    if config.task != default_of("task"):
        return config.task
    if train.stem in ("train", "train.seq"):
        return train.absolute().parent.name or "train"
    return train.stem


def _cells(
    path: Path, row: Row, problem: ProblemType[Any], columns: Columns
) -> tuple[Example, Any]:
    """Return the example of a row and its label, or raise RowError."""
    try:
        return problem.read(row.values, columns)
    except CellError as error:
        raise _wrong(path, row, error) from None


def _example(path: Path, row: Row, columns: Sequence[str]) -> Example:
    try:
        return tuple(text_of_cell(row.values, column) for column in columns)
    except CellError as error:
        raise _wrong(path, row, error) from None


def _wrong(path: Path, row: Row, error: CellError) -> RowError:
    return RowError(path, f"{row.place}, column {error.column!r}", f"{error.problem}.")


def _listed(labels: Iterable[str]) -> str:
    names = [repr(label) for label in labels]
    more = len(names) - SHOWN_LABELS
    return ", ".join(names[:SHOWN_LABELS]) + (f" and {more} more" if more > 0 else "")
