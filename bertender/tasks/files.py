"""Tasks of the user's own: a training file and a held-out file, checked row by row.

Whatever is wrong in them is a DataError that names the file, the row and the column. With
`skip_bad_rows`, rows that are wrong are left out instead; a file that is wrong still stops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertender.core.errors import ConfigError
from bertender.problems import PROBLEMS, SINGLE_LABEL, TOKEN_CLASSIFICATION, Columns, ProblemType
from bertender.tasks.bad_rows import SkippedRows, stop
from bertender.tasks.labelled import Labelled, label_names, read_labelled
from bertender.tasks.rows import Table
from bertender.tasks.task import Split, Task, TaskConfig, default_of
from bertender.tasks.word_rows import WORD_SUFFIXES

__all__ = ["load_files", "problem_type_of"]

logger = logging.getLogger(__name__)

SHARED_SHARE = 0.01
"""Of the held-out texts: short ones recur by chance."""


def load_files(config: TaskConfig) -> Task:
    """Load the task that `config.train` and `config.dev` hold; labels are sorted.

    Raises:
        ConfigError: only one of the files is set, or two columns are the same.
        DataError: a file is wrong.
    """
    train_path, dev_path = _both_files(config)
    problem = PROBLEMS[problem_type_of(config)]
    skipped = SkippedRows()
    bad = skipped if config.skip_bad_rows else stop
    train_table = problem.open_file(train_path, bad)
    text_columns, label_column = _distinct_columns(config, problem, train_table.columns)

    def read(table: Table) -> Labelled:
        return read_labelled(table, text_columns, label_column, problem)

    train, dev = read(train_table), read(problem.open_file(dev_path, bad))
    labels = label_names(train)
    splits = [each.split(labels, str(train_path), bad) for each in (train, dev)]
    _warn_of_shared(splits[0], splits[1], train_path)
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


def _warn_of_shared(train: Split, dev: Split, path: Path) -> None:
    """Warn where held-out examples are learned from as well."""
    learned = {*train.examples}
    shared = sum(example in learned for example in dev.examples)
    if shared > SHARED_SHARE * len(dev.examples):
        logger.warning(
            "%d of %d held-out texts are in %s too: what is learned by heart scores as well. Leave "
            "them out of one of the files.",
            shared,
            len(dev.examples),
            path,
        )


def problem_type_of(config: TaskConfig) -> str:
    """Return the problem type of a task of files: as set, or by the suffix of the file."""
    own = config.train is not None and config.train.suffix.lower() in WORD_SUFFIXES
    guessed = TOKEN_CLASSIFICATION if own else SINGLE_LABEL
    return config.problem_type or guessed.name


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
    if pair and not problem.takes_pairs:
        raise ConfigError(
            f"--pair-column {config.pair_column}: an example of {problem.name!r} has no second "
            "text. Leave it out."
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
