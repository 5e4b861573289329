"""Texts without labels that a student learns from, and the filters that leave some of them out.

TEXT_FILTERS go by the text alone, OUTPUT_FILTERS by what the teachers make of it. Texts that score
a model or choose its settings are always left out: nothing learns from them, labelled or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch

from bertender.tasks.bad_rows import OnBadRow, SkippedRows, stop, together
from bertender.tasks.task import Split, Task
from bertender.tasks.texts import read_texts
from bertender.tasks.unlabelled import unlabelled_texts
from bertender.text.example import Example
from distill.distillation.cached_outputs import averaged
from distill.distillation.unlabelled_config import FilteredConfig, UnlabelledConfig
from distill.losses import NO_LABEL

__all__ = [
    "OUTPUT_FILTERS",
    "TEXT_FILTERS",
    "Extended",
    "LeavesOut",
    "OutputFilter",
    "folded",
    "remaining",
    "texts_of_task",
    "with_unlabelled",
]

LeavesOut = Callable[[Example], bool]
"""Return whether a text is left out; texts are asked for in their order, each once."""


@dataclass(frozen=True)
class Extended:
    """A task with texts without labels, and how many were left out."""

    task: Task
    """Its own training examples come first."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """By the filter that left them out."""


def texts_of_task(config: UnlabelledConfig, task: Task) -> Sequence[Example]:
    """Return the texts without labels that come with a task, where a config asks for some."""
    return unlabelled_texts(task) if config.unlabelled_texts else ()


def with_unlabelled(task: Task, config: FilteredConfig) -> Extended:
    """Add the texts without labels that TEXT_FILTERS leave to a task's training examples.

    Bad rows are left out and listed where the task's own are.

    Raises:
        DataError: the file is wrong.
    """
    if not config.learns_unlabelled:
        return Extended(task)
    skipped = SkippedRows()
    filters = {name: of(task, config) for name, of in TEXT_FILTERS.items()}
    left_out: Counter[str] = Counter()
    of_file, of_task = (
        _passing(texts, filters, left_out)
        for texts in _texts(task, config, skipped if task.skips_bad_rows else stop)
    )
    added = (
        *islice(of_file, config.max_unlabelled),
        *islice(of_task, config.unlabelled_texts),
    )
    labels = (*task.train.label_ids, *[NO_LABEL] * len(added))
    train = Split((*task.train.examples, *added), labels)
    rows = together(task.left_out, skipped.report())
    return Extended(replace(task, train=train, left_out=rows), dict(left_out))


def _texts(
    task: Task, config: FilteredConfig, bad_row: OnBadRow
) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return the texts of the file, and those that come with the task, where they are asked for."""
    path = config.unlabelled
    return (
        () if path is None else read_texts(path, task.text_columns, bad_row),
        texts_of_task(config, task),
    )


def folded(example: Example) -> Example:
    """Return an example without its upper case and its white space between words and around."""
    return tuple(" ".join(text.casefold().split()) for text in example)


def _passing(
    texts: Iterable[Example], filters: Mapping[str, LeavesOut], left_out: Counter[str]
) -> Iterator[Example]:
    """Yield the texts that no filter leaves out, and count the others by the first that does."""
    for text in texts:
        reason = next((name for name, leaves_out in filters.items() if leaves_out(text)), None)
        if reason is None:
            yield text
        else:
            left_out[reason] += 1


def _among(examples: Iterable[Example]) -> LeavesOut:
    known = {folded(example) for example in examples}
    return lambda example: folded(example) in known


def _held_out(task: Task, config: FilteredConfig) -> LeavesOut:
    return _among(chain(task.dev.examples, task.reserved))


def _selection(task: Task, config: FilteredConfig) -> LeavesOut:
    return _among(task.selection.examples)


def _length(task: Task, config: FilteredConfig) -> LeavesOut:
    least, most = config.unlabelled_min_words or 0, config.unlabelled_max_words or math.inf
    return lambda example: not least <= sum(len(text.split()) for text in example) <= most


def _copies(task: Task, config: FilteredConfig) -> LeavesOut:
    if not config.unlabelled_distinct:
        return lambda example: False
    known = {folded(example) for example in task.train.examples}

    def is_copy(example: Example) -> bool:
        before = len(known)
        known.add(folded(example))
        return len(known) == before

    return is_copy


TEXT_FILTERS: Mapping[str, Callable[[Task, FilteredConfig], LeavesOut]] = {
    "held_out": _held_out,
    "selection": _selection,
    "length": _length,
    "copies": _copies,
}
"""(task, config) -> what a filter leaves out, by its name; a text of a pair counts with both."""


@dataclass(frozen=True)
class OutputFilter:
    """A row of OUTPUT_FILTERS."""

    setting: str
    """It asks for the filter."""
    leaves_out: Callable[[Sequence[torch.Tensor], torch.Tensor, Any], torch.Tensor]
    """(logits (texts, labels) of each teacher, those of their mean distribution, value of the
    setting) -> a truth for each text"""


def _unsure(logits: Sequence[torch.Tensor], mean: torch.Tensor, max_entropy: float) -> torch.Tensor:
    log_probabilities = mean.double().log_softmax(-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return entropy / math.log(mean.shape[-1]) > max_entropy


def _disputed(logits: Sequence[torch.Tensor], mean: torch.Tensor, agreement: bool) -> torch.Tensor:
    predictions = torch.stack([each.argmax(-1) for each in logits])  # (teachers, texts)
    return (predictions != predictions[0]).any(0)


OUTPUT_FILTERS: Mapping[str, OutputFilter] = {
    "entropy": OutputFilter("unlabelled_max_entropy", _unsure),
    "agreement": OutputFilter("unlabelled_agreement", _disputed),
}
"""Filters by the teachers' logits, by name."""


def remaining(
    task: Task, config: FilteredConfig, logits: Callable[[], Sequence[torch.Tensor]]
) -> tuple[tuple[bool, ...], Mapping[str, int]]:
    """Return which training texts OUTPUT_FILTERS leave, and how many each leaves out.

    Texts with a label all stay.

    Args:
        task: with its unlabelled texts.
        config: it asks for filters.
        logits: returns those of each teacher on the training texts, (texts, labels); it is called
            where a filter is asked for.
    """
    asked = {name: getattr(config, row.setting, None) for name, row in OUTPUT_FILTERS.items()}
    if not any(asked.values()):
        return (True,) * len(task.train), {}
    outputs, left_out = logits(), {}
    stay = torch.ones(len(task.train), dtype=torch.bool)
    unlabelled = torch.tensor(task.train.label_ids) == NO_LABEL
    for name, value in asked.items():
        if value:
            leaves_out = OUTPUT_FILTERS[name].leaves_out(outputs, averaged(outputs), value)
            gone = stay & unlabelled & leaves_out
            stay &= ~gone
            left_out[name] = int(gone.sum())
    return tuple(stay.tolist()), {name: count for name, count in left_out.items() if count}
