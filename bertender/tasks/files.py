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
from bertender.tasks.labelled import Labelled, check_classes, label_names, read_labelled
from bertender.tasks.rows import Table
from bertender.tasks.task import Split, Task, TaskConfig, default_of
from bertender.tasks.word_rows import WORD_SUFFIXES

__all__ = ["load_files", "problem_type_of"]

logger = logging.getLogger(__name__)

SHARED_SHARE = 0.01
"""Of the held-out texts: short ones recur by chance."""


def load_files(config: TaskConfig, *, has_model: bool = False) -> Task:
    """Load the task that `config.train` and `config.dev` hold; labels are sorted.

    Args:
        config: names the files and their columns.
        has_model: the task is for a finished model, so that a held-out file alone will do; there is
            nothing to learn from then.

    Raises:
        ConfigError: only one of the files is set, or two columns are the same.
        DataError: a file is wrong.
    """
    dev_path, train_path = _both_files(config, has_model)
    problem = PROBLEMS[problem_type_of(config)]
    skipped = SkippedRows()
    bad = skipped if config.skip_bad_rows else stop
    tables = [problem.open_file(path, bad) for path in (train_path, dev_path) if path]
    text_columns, label_column = _distinct_columns(config, problem, tables[0].columns)

    def read(table: Table) -> Labelled:
        return read_labelled(table, text_columns, label_column, problem)

    first, *more = map(read, tables)
    labels = label_names(first, several=not has_model)
    if problem is SINGLE_LABEL and config.problem_type is None and not has_model:
        check_classes(first)
    splits = [each.split(labels, str(first.path), bad) for each in (first, *more)]
    train, dev = splits if train_path else (Split((), ()), *splits)
    _warn_of_shared(train, dev, first.path)
    return Task(
        name=_name(config, train_path or dev_path),
        labels=labels,
        metric=problem.metrics[0],
        text_columns=text_columns,
        train=train,
        dev=dev,
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
    first = config.train or config.dev
    own = first is not None and first.suffix.lower() in WORD_SUFFIXES
    guessed = TOKEN_CLASSIFICATION if own else SINGLE_LABEL
    return config.problem_type or guessed.name


def _both_files(config: TaskConfig, has_model: bool) -> tuple[Path, Path | None]:
    """Return the held-out file, and the one to learn from, where there must be one."""
    if config.dev is None or (config.train is None and not has_model):
        explicit, missing = ("--train", "--dev") if config.train else ("--dev", "--train")
        raise ConfigError(
            f"{explicit} {config.train or config.dev} is set without {missing}. A task of your "
            "own needs both: a file to learn from, and one that is held out."
        )
    return config.dev, config.train


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


def _name(config: TaskConfig, first: Path) -> str:
    """Return the name the user gave, else the file's, or its folder's for one called train."""
    if config.task != default_of("task"):
        return config.task
    if first.stem in ("train", "train.seq", "dev", "test"):
        return first.absolute().parent.name or first.stem
    return first.stem
