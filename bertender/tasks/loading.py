"""Loading tasks: from a TaskConfig, by a name in TASKS or from the user's files.

Errors in the user's files are DataErrors with file, row and column. With `skip_bad_rows`, bad rows
are left out instead; a bad file is still an error.
"""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from bertender.core.errors import ConfigError, HubUnreachableError, UnknownNameError
from bertender.metrics.metric import AND, OF_HEAD, HeadTargets
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.reading import Columns
from bertender.problems.several_heads import BETWEEN, head_name
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.labelled import check_classes, label_names, read_labelled
from bertender.tasks.named import TASKS
from bertender.tasks.rows import SkippedRows, open_table, stop
from bertender.tasks.task import (
    DEFAULT_SHARES,
    Parted,
    Split,
    Task,
    TaskConfig,
    check_metric,
    default_of,
    held_out_of,
    listed,
    part,
    to_learn,
    with_model_labels,
)
from bertender.tasks.word_rows import WORD_SUFFIXES, open_words
from bertender.text.batch import Example

logger = logging.getLogger(__name__)

SHARED_SHARE = 0.01
"""Tolerated share of held-out texts that are also training texts: short ones recur by chance."""
SAMPLE_SEED = 0
SHOWN_GROUPS = 5
"""Most groups of labels in a warning."""
SHOWN_CHARACTERS = 60
"""Most characters of a text in a warning."""


def _targets(task: Task) -> Sequence[Any]:
    """Return the targets of the training examples, or of the only, held-out file."""
    return (task.train if len(task.train) else task.dev).label_ids


def load_task(config: TaskConfig, *, has_model: bool = False) -> Task:
    """Load the task that a config names, or the task in its files.

    Args:
        config: see TaskConfig.
        has_model: the task is for an imported model. Then a held-out file is enough; a share of it
            becomes validation texts.

    Raises:
        UnknownNameError: there is no such task, and there are no files.
        ConfigError: no training file, or too few validation or held-out texts.
        DataError: a data file is wrong.
        HubUnreachableError: the data are not on this machine and no hub responds.
    """
    if config.label_map is not None and not has_model:
        raise ConfigError(
            f"label_map={config.label_map}: it pairs labels of the data with those of a model that "
            "is there already, and what learns from these data has theirs. Leave it "
            "out, or give all settings to the function that judges a finished model."
        )
    names = config.task.split(BETWEEN)
    if len(names) > 1 and not (config.train or config.dev):
        return _several(names, config, has_model=has_model)
    _check_sources(config)
    if config.train or config.dev:
        task = load_files(config, has_model=has_model)
    else:
        row = TASKS[config.task]
        task = Task(
            *(config.task, row.labels, row.metric, row.text_columns, *row.load()),
            problem_type=row.problem_type,
        )
        if config.select != 0:
            task = replace(task, selection=row.load_choices())
    if config.metric is not None:
        task = replace(task, metric=check_metric(config.metric, task.problem, _targets(task)))
    splits = {"train": task.train, "dev": task.dev, "selection": task.selection}
    data = {name: split.digest() for name, split in splits.items() if len(split)}
    # first, so that a text is in the same split for any max_train
    if len(task.selection):  # a separate file
        share = DEFAULT_SHARES["training"] if config.select is None else config.select
        parts = Parted(task.train, task.selection, share)
    elif len(task.train):
        parts = part(task.train, config.select, task.name, task.problem)
        task = replace(task, train=parts.train)
    else:
        parts = part(task.dev, config.select, task.name, task.problem, "held-out")
        task = replace(task, dev=parts.train)
        if count := len(parts.selection):
            logger.warning(
                "task %s: of %d held-out texts, %d are validation texts, which choose and "
                "calibrate, and %d score. With --train FILE, the former come from there",
                task.name,
                count + len(task.dev),
                count,
                len(task.dev),
            )
    dev = sample(task.dev, config.max_dev, task.problem)
    selection = sample(parts.selection, config.max_select, task.problem)
    whole = (*task.dev.examples, *parts.selection.examples)
    sampled = {*dev.examples, *selection.examples}
    return replace(
        task,
        train=to_learn(sample(task.train, config.max_train, task.problem), task.name, task.problem),
        dev=dev,
        selection=selection,
        reserved=tuple(each for each in whole if each not in sampled),
        source=_source(config, task, parts.share),
        data=data,
    )


def _several(names: Sequence[str], config: TaskConfig, *, has_model: bool) -> Task:
    """Return several named tasks as one with several heads; each text has the labels of one task.

    Raises:
        ConfigError: the tasks differ in reading one text or two, or one is named twice.
    """
    tasks = [
        load_task(
            config.model_copy(update={"task": name.strip(), "metric": None}), has_model=has_model
        )
        for name in names
    ]
    _check_alike(tasks, config)
    heads = {head_name(task.name): task for task in tasks}
    if len(heads) < len(tasks):
        raise ConfigError(f"task={config.task}: each task must be named once.")
    kinds = (f"{name}{OF_HEAD}{task.problem_type}" for name, task in heads.items())
    problem = PROBLEMS[BETWEEN.join(kinds)]

    def read(task: Task, own: Sequence[Example]) -> Sequence[Example]:
        """Return examples of a task, split into words if another task labels words."""
        splits = problem.labels_words and not task.problem.labels_words
        return [*map(problem.to_example, own)] if splits else own

    def together(name: str) -> Split:
        """Return a split over all tasks."""
        examples: list[Example] = []
        targets: list[HeadTargets] = []
        for place, task in enumerate(tasks):
            split: Split = getattr(task, name)
            own_examples = read(task, split.examples)
            examples += own_examples
            for example, own in zip(own_examples, split.label_ids, strict=True):
                target = [*problem.unlabelled(example)]
                target[place] = own
                targets.append(HeadTargets(target))
        return Split(tuple(examples), tuple(targets))

    whole = Task(
        name=config.task,
        labels=tuple(
            f"{name}{OF_HEAD}{label}" for name, task in heads.items() for label in task.labels
        ),
        metric=AND.join(f"{name}{OF_HEAD}{task.metric}" for name, task in heads.items()),
        text_columns=tasks[-1].text_columns,  # a task that labels words is the last
        train=together("train"),
        dev=together("dev"),
        selection=together("selection"),
        reserved=tuple(example for task in tasks for example in read(task, task.reserved)),
        data={f"{name} {key}": d for name, task in heads.items() for key, d in task.data.items()},
        problem_type=problem.name,
    )
    if config.metric is not None:
        whole = replace(whole, metric=check_metric(config.metric, whole.problem, _targets(whole)))
    return replace(whole, source=_source(config, whole, tasks[0].source["select"]))


def _check_alike(tasks: Sequence[Task], config: TaskConfig) -> None:
    """Raise ConfigError if tasks cannot share a model: their columns or their shares of validation
    texts differ."""
    first = tasks[0]
    for task in tasks:
        if task.problem.heads:
            raise ConfigError(
                f"task={config.task}: {task.name!r} has several heads itself. Name it alone, or "
                "name other tasks."
            )
        if len(task.text_columns) != len(first.text_columns):
            raise ConfigError(
                f"task={config.task}: {task.name!r} reads {', '.join(task.text_columns)}, and "
                f"{first.name!r} {', '.join(first.text_columns)}. All heads of an encoder read one "
                "text, or all read two."
            )
    shares = {task.source["select"] for task in tasks}
    if len(shares) > 1:
        raise ConfigError(
            f"task={config.task}: some have too few texts to set a share apart. Give --select 0."
        )


def sample(split: Split, count: int | None, problem: Problem[Any] = SINGLE_LABEL) -> Split:
    """Return `count` examples drawn with a fixed seed, or the whole split if it is smaller.

    One example of every class comes first, so that no class is lost if `count` allows.
    """
    if count is None or count >= len(split):
        return split
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(split))
    seen, firsts = set[int](), []
    for place, row in enumerate(order):
        labels = problem.labels_of(split.label_ids[row])
        if not seen.issuperset(labels):
            firsts.append(place)
            seen.update(labels)
    chosen = np.concatenate([order[firsts], np.delete(order, firsts)])[:count].tolist()
    return Split(
        tuple(split.examples[row] for row in chosen), tuple(split.label_ids[row] for row in chosen)
    )


def _check_sources(config: TaskConfig) -> None:
    """Raise ConfigError for file settings without files, or for files next to a named task."""
    own = bool(config.train or config.dev)
    of_files = ("text_column", "pair_column", "label_column", "problem_type", "skip_bad_rows")
    changed = [name for name in of_files if getattr(config, name) != default_of(name)]
    if changed and not own:
        raise ConfigError(
            f"{', '.join(sorted(changed))}: for files of your own, and task {config.task!r} has "
            f"its own columns and no bad rows. Give --train and --dev as well, or leave them out."
        )
    if own and config.task in TASKS and config.is_explicit("task"):
        raise ConfigError(
            f"task={config.task!r} is a task by name, and train and dev are files of your own: "
            "give one or the other, or another name for your task."
        )
    if not own and config.task not in TASKS:
        known = (*TASKS, "your own files with --train and --dev")
        raise UnknownNameError("task", config.task, known, setting="task")


def _source(config: TaskConfig, task: Task, share: float) -> dict[str, object]:
    """Return the config as plain values that find the same data from any working directory."""
    files = {"train": config.train, "dev": config.dev}
    absolute = {name: path and path.absolute() for name, path in files.items()}
    found = {"task": task.name, **absolute, "select": share}
    plain = config.model_copy(update=found).model_dump(mode="json")
    # cards without a problem type have single labels
    is_named = not (config.train or config.dev)
    is_usual = is_named or (task.problem is SINGLE_LABEL and config.problem_type is None)
    recorded = {} if is_usual else {"problem_type": task.problem_type}
    if_given = [name for name in ("metric", "label_map") if getattr(config, name) is None]
    left_out = {"problem_type", *if_given}
    settings = {name: plain[name] for name in plain if name not in left_out}
    return {**settings, **task.source, **recorded}


def unlabelled_texts(task: Task) -> tuple[Example, ...]:
    """Return the unlabelled texts of a named task; most have none."""
    row = None if task.source.get("train") else TASKS.get(task.source.get("task", ""))
    texts = row.unlabelled() if row else ()
    if not texts:
        logger.warning(
            "task %s comes with no unlabelled texts: unlabelled_texts adds none. Give a file of "
            "some by --unlabelled",
            task.name,
        )
    return texts


def scored_too(task: Task) -> dict[str, Task]:
    """Return the other tasks on whose held-out texts a model of this task is scored, by name.

    Each has only held-out texts, with the labels of this task. A task without files is left out
    with a warning.
    """
    row = None if task.source.get("train") else TASKS.get(task.source.get("task", ""))
    found, nothing = {}, Split((), ())
    for name in row.scored_too if row else ():
        try:
            dev = sample(TASKS[name].load_held_out(), task.source.get("max_dev"), task.problem)
        except HubUnreachableError as error:
            logger.warning("models of %s are not scored on %s as well: %s", task.name, name, error)
            continue
        own = replace(task, train=nothing, selection=nothing, dev=dev)
        other = replace(own, name=name, labels=TASKS[name].labels)
        found[name] = with_model_labels(other, task.labels, task.source.get("label_map"), task.name)
    return found


def load_files(config: TaskConfig, *, has_model: bool = False) -> Task:
    """Load the task in `config.train` and `config.dev`; labels are sorted.

    Args:
        config: names of files and columns.
        has_model: the task is for an imported model, which needs no training file.

    Raises:
        ConfigError: the training or the held-out file is missing; or two columns are the same.
        DataError: a file is wrong.
    """
    if config.train is None and not has_model:
        raise ConfigError(
            f"--dev {config.dev} is set without --train. A task of your own needs a file to learn "
            "from."
        )
    problem = PROBLEMS[problem_type_of(config)]
    skipped = SkippedRows()
    bad = skipped if config.skip_bad_rows else stop
    open_file = open_words if problem.labels_words else open_table
    tables = [open_file(path, bad) for path in (config.train, config.dev) if path]
    text_columns, label_column = _distinct_columns(config, problem, tables[0].columns)
    first = read_labelled(tables[0], text_columns, label_column, problem)
    beside = first.examples[0]
    more = [read_labelled(each, text_columns, label_column, problem, beside) for each in tables[1:]]
    known = first
    if has_model:  # the files may lack a label, each another one
        known = replace(first, labels=tuple(chain(first.labels, *(each.labels for each in more))))
    labels = label_names(known, several=not has_model)
    problem = problem.of_labels(labels)
    if problem is SINGLE_LABEL and config.problem_type is None and not has_model:
        check_classes(first)
    splits = [each.split(labels, str(first.path), bad) for each in (first, *more)]
    if config.train is not None:
        _warn_of_like_labels(labels, first.path)
        if problem is SINGLE_LABEL:
            _warn_of_contradictions(splits[0], labels, first.path)
    name = _name(config, config.train or config.dev or first.path)
    if config.dev is None:
        train, dev = held_out_of(splits[0], name, problem)
    else:
        train, dev = splits if config.train else (Split((), ()), *splits)
    learned = {*train.examples}
    shared = sum(example in learned for example in dev.examples)
    if shared > SHARED_SHARE * len(dev.examples):
        logger.warning(
            "%d of %d held-out texts are in %s too, and would score what is learned by heart. "
            "Leave them out of one of the files.",
            shared,
            len(dev.examples),
            first.path,
        )
    return Task(
        name=name,
        labels=labels,
        metric=problem.metrics_of(labels, (train if len(train) else dev).label_ids)[0],
        text_columns=problem.text_names(Columns(text_columns, label_column), beside),
        train=train,
        dev=dev,
        source={"text_column": text_columns[0], "label_column": label_column},
        left_out=skipped.report(),
        problem_type=problem.name,
    )


def _warn_of_like_labels(labels: Sequence[str], path: Path) -> None:
    """Log a warning for labels that differ only by case, spaces or Unicode form."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        plain = unicodedata.normalize("NFKC", label).casefold()
        groups.setdefault(" ".join(plain.split()), []).append(label)
    alike = [own for own in groups.values() if len(own) > 1]
    if not alike:
        return
    shown = [" and ".join(map(_told_apart(own), own)) for own in alike[:SHOWN_GROUPS]]
    more = len(alike) - len(shown)
    logger.warning(
        "%s: labels that differ only by case, spaces or Unicode form are different labels to a "
        "model: %s%s. Where they are the same, write them alike",
        *(path, "; ".join(shown), f"; and {more} more" if more else ""),
    )


def _told_apart(labels: Sequence[str]) -> Callable[[str], str]:
    """Return a function that quotes labels; by escapes where they look alike."""
    looks = {unicodedata.normalize("NFKC", label) for label in labels}
    return repr if len(looks) == len(labels) else ascii


def _warn_of_contradictions(split: Split, labels: Sequence[str], path: Path) -> None:
    """Log a warning for texts that occur with different labels."""
    first: dict[Example, int] = {}
    several: dict[Example, set[int]] = {}
    for example, label in zip(split.examples, split.label_ids, strict=True):
        known = first.setdefault(example, label)
        if label != known:
            several.setdefault(example, {known}).add(label)
    if not several:
        return
    example, numbers = next(iter(several.items()))
    text = shorten(SINGLE_LABEL.separator.join(example), SHOWN_CHARACTERS, placeholder="...")
    logger.warning(
        "%s: %d texts occur with different labels, which no model can learn, such as %r with %s. "
        "Correct them, or leave them out",
        *(path, len(several), text, listed([labels[number] for number in sorted(numbers)])),
    )


def problem_type_named(settings: Mapping[str, Any]) -> str | None:
    """Return the problem type of a task's settings, set explicitly or by the task's name."""
    row = TASKS.get(settings.get("task", ""))
    stated = settings.get("problem_type")
    return stated if row is None or stated else row.problem_type


def problem_type_of(config: TaskConfig) -> str:
    """Return the problem type for a task's files: as set, or by the suffix of the file."""
    first = config.train or config.dev
    suffix = "" if first is None else first.suffix.lower()
    guessed = {
        **dict.fromkeys(WORD_SUFFIXES, TOKEN_CLASSIFICATION.name),
        ".json": QUESTION_ANSWERING.name,
    }
    return named_heads(config) or guessed.get(suffix, SINGLE_LABEL.name)


def named_heads(config: TaskConfig) -> str | None:
    """Return the problem type of a config; unnamed heads are named after their column.

    Raises:
        ConfigError: the numbers of heads and label columns differ.
    """
    kinds = (config.problem_type or "").split(BETWEEN)
    if len(kinds) < 2 or all(OF_HEAD in kind for kind in kinds):
        return config.problem_type
    columns = config.label_column.split(BETWEEN)
    if len(columns) != len(kinds):
        raise ConfigError(
            f"problem_type={config.problem_type}, label_column={config.label_column}: "
            f"{len(kinds)} heads, and {len(columns)} columns of labels. Give one column for each "
            "head by commas, in the same order."
        )
    pairs = zip(columns, kinds, strict=True)
    named = (kind if OF_HEAD in kind else f"{name.strip()}{OF_HEAD}{kind}" for name, kind in pairs)
    return BETWEEN.join(named)


SECOND_TEXTS = (
    *("text_pair", "text2", "text_2", "text_b", "pair", "hypothesis"),
    *("sentence2", "sentence_2", "sentence_b", "question2", "question_2"),
)
"""Usual names of the column with the second texts of pairs."""


def _distinct_columns(config: TaskConfig, problem: Problem[Any], there: Sequence[str]) -> Columns:
    """Return the columns to read from a file; no column may have two roles."""
    usual, pair_column = problem.usual_columns(there), config.pair_column
    is_usual = usual.texts[1:] and (usual.texts[1] in there or not problem.reads_pairs)
    if pair_column is None and is_usual:
        pair_column = usual.texts[1]
    if problem.reads_pairs and pair_column is None:
        raise ConfigError(
            f"{problem.name} learns from pairs of texts, and --pair-column is not set. Give "
            f"--text-column and --pair-column; the file has {', '.join(there)}."
        )
    pair = problem.more_columns(pair_column, there)
    if pair and not problem.takes_pairs:
        raise ConfigError(
            f"--pair-column {config.pair_column}: an example of {problem.name!r} has no second "
            "text. Leave it out."
        )
    first = _column(config, "text_column", usual.texts[0], there)
    label = _column(config, "label_column", usual.label, there)
    if problem.reads_pairs and label not in there and not config.is_explicit("label_column"):
        label = ""
        if more := [name for name in there if name not in (first, *pair)]:
            logger.warning(
                "there is no column %r, so every pair is a positive one. If one of these "
                "has similarities, name it by --label-column: %s",
                *(usual.label, ", ".join(more)),
            )
    columns = Columns((first, *pair), label)
    labels = problem.label_columns(label)
    unread = (each for each in there if each not in (first, *labels))
    second = next((each for each in unread if each.lower() in SECOND_TEXTS), None)
    if problem.takes_pairs and not pair and second is not None:
        logger.warning(
            "the column %r is not read, so that each example is the text in %r alone. If it has "
            "the second texts of pairs, name it: --pair-column %s",
            *(second, first, second),
        )
    if len({*columns.texts, *labels}) < len(columns.texts) + len(labels):
        paired = f"--pair-column {pair[0]}, " if pair else ""
        raise ConfigError(
            f"{paired}--text-column {first} and --label-column {label} must be different columns, "
            "and each must be there once."
        )
    return columns


def _column(config: TaskConfig, setting: str, usual: str, there: Sequence[str]) -> str:
    """Return the column of a setting, or the default column of the problem type.

    A setting with its default value may mean either: the one in the file.
    """
    value = str(getattr(config, setting))
    if value != default_of(setting):
        return value
    candidates = (value, usual) if config.is_explicit(setting) else (usual, value)
    # several columns are separated by commas
    found = (each for each in candidates if each in there or {*each.split(",")} <= {*there})
    return next(found, candidates[0])


def _name(config: TaskConfig, first: Path) -> str:
    """Return the task's name: the user's, else that of the file, or of its folder for a file named
    train."""
    if config.task != default_of("task"):
        return config.task
    if first.stem in ("train", "train.seq", "dev", "test"):
        # a link keeps its name, and `..` has that of its folder
        return Path(os.path.abspath(first)).parent.name or first.stem  # noqa: PTH100
    return first.stem
