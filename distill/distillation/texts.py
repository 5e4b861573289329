"""The texts that a student learns from, with the cached outputs of its teachers."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Stopwatch
from bertender.core.errors import ConfigError
from bertender.models.families import most_tokens
from bertender.problems.problem import NO_LABEL
from bertender.tasks.labelled import read_texts
from bertender.tasks.loading import unlabelled_texts
from bertender.tasks.rows import OnBadRow, SkippedRows, stop, together
from bertender.tasks.task import Split, Task
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TokenDataset, token_dataset
from bertender.training.heads import HEADS
from distill.augmentation.augment import augmented
from distill.augmentation.config import AugmentedConfig
from distill.distillation.distill_config import DistillConfig
from distill.distillation.start import Start
from distill.distillation.unlabelled_config import FilteredConfig, UnlabelledConfig
from distill.losses.signals import Wanted, joined
from distill.methods.method import Method
from distill.teachers.outputs import (
    LOGITS,
    cacheable,
    rows_at,
    size_bytes,
    teacher_outputs,
    teacher_token_logits,
)
from distill.teachers.teacher import Teacher

# --- from distill.distillation.cached_outputs
# The texts that a student learns from, with the cached outputs of its teachers.

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaughtTexts:
    """The texts that a student learns from, and the teachers whose outputs it learns."""

    teachers: Sequence[Teacher]
    """The logits of several are averaged, and so are always cached; states are the first one's."""
    start: Start
    """Source that the student starts from."""
    task: Task
    """Its training texts, which the teachers read; where words have labels, only logits are
    cached."""
    config: DistillConfig
    stay: tuple[bool, ...] = ()
    """Which of the texts are learned from, a truth for each; without any, all are."""

    @property
    def learned(self) -> Task:
        """The task with the texts that are learned from."""
        train = self.task.train
        return replace(self.task, train=train.where(self.stay)) if self.stay else self.task

    @property
    def identity(self) -> tuple[Any, ...]:
        """Digests of the texts that are learned from, of the start and of the teachers."""
        teachers = (each.artifact.digest for each in self.teachers)
        return self.learned.fingerprint(), [self.start.digest, *teachers]

    def with_copies(self, texts: Split) -> TaughtTexts:
        """Return the same with more texts at the end, all of which are learned from."""
        own = self.task.train
        train = Split((*own.examples, *texts.examples), (*own.label_ids, *texts.label_ids))
        stay = (*self.stay, *(True for _ in texts.examples)) if self.stay else ()
        return replace(self, task=replace(self.task, train=train), stay=stay)

    def logits(self, tokenizer: PreTrainedTokenizerBase) -> list[torch.Tensor]:
        """Return each teacher's logits (texts, labels) on all texts, which are cached.

        Args:
            tokenizer: the student's.
        """
        _, known = self._read(tokenizer)
        logits: Wanted = {"logits": frozenset()}
        return [self._outputs(teacher, known, logits)[LOGITS] for teacher in self.teachers]

    def cached(self, method: Method, student: PreTrainedModel) -> Wanted:
        """Return what is computed before the training and cached on disk; the rest is in each step.

        Args:
            method: its phases list what they read of the first teacher.
            student: its depth sets of which layers.

        Raises:
            ConfigError: what must be cached is larger than the config allows.
        """
        depths = [m.config.num_hidden_layers for m in (student, self.teachers[0].model)]
        reads = [phase.reads(*depths) for phase in method.at(depths[0]).phases]
        several: Wanted = {"logits": frozenset()} if len(self.teachers) > 1 else {}
        wanted = joined((cacheable(reads), several))
        if HEADS[self.task.problem_type].per_token:
            wanted = _logits_of(wanted)
        size_mb = self._size_mb(wanted)
        if size_mb <= self.config.teacher_cache_mb:
            return wanted
        self._check_optional(wanted, size_mb)
        return {}

    def examples(
        self, cached: Wanted, tokenizer: PreTrainedTokenizerBase, clock: Stopwatch
    ) -> TokenDataset:
        """Tokenise the texts for the student, with the teachers' cached outputs as columns.

        Where the first teacher reads the same tokens, they are its own tokenizer's, which gives the
        segments too that a student may not take; otherwise `tokenizer`'s, the student's. No text is
        longer than the student takes.

        Several teachers give the logits of their mean distribution, as MT-DNN's ensembles do (Liu
        et al. 2019, arXiv 1904.09482, section 3), each in its own tokens; states are the first
        one's.
        """
        examples, known = self._read(tokenizer)
        with clock.running():
            first, *more = (
                self._outputs(teacher, known, cached if place == 0 else _logits_of(cached))
                for place, teacher in enumerate(self.teachers)
            )
        if LOGITS in first:
            first[LOGITS] = averaged([first[LOGITS], *(each[LOGITS] for each in more)])
        if HEADS[self.task.problem_type].per_token and first:
            padding = examples.padding.with_others(**dict.fromkeys(first, 0))
            return TokenDataset({**examples.columns, **first}, padding)
        return self._chosen(examples, first)

    def _chosen(self, examples: TokenDataset, outputs: Mapping[str, Any]) -> TokenDataset:
        """Return the texts that are learned from, with the outputs on them."""
        if all(self.stay):
            return examples.with_columns(**outputs)
        numbers = [number for number, stays in enumerate(self.stay) if stays]
        chosen = {name: rows_at(column, numbers) for name, column in outputs.items()}
        return examples.where(self.stay).with_columns(**chosen)

    def _read(
        self, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[TokenDataset, Mapping[str, TokenDataset]]:
        """Return the texts as the student reads them, and by a teacher's path as it does."""
        shared, source = self.start.reads_teacher_tokens, self.teachers[0].artifact.path
        own = load_tokenizer(source, longest_input(tokenizer)) if shared else tokenizer
        examples = self._tokenised(own)
        return examples, {str(source): examples} if shared else {}

    def _tokenised(self, tokenizer: PreTrainedTokenizerBase) -> TokenDataset:
        return token_dataset(self.task.train, tokenizer, self.task.problem_type)

    def _tokenizer(self, teacher: Teacher) -> PreTrainedTokenizerBase:
        """Return a teacher's tokenizer, with the longest input that is given, or else its own."""
        given = self.config.max_length
        if given is not None:
            given = min(given, most_tokens(teacher.model.config) or given)
        return load_tokenizer(teacher.artifact.path, given)

    def _size_mb(self, wanted: Wanted) -> float:
        """Return how large these outputs of the first teacher are on disk, at most."""
        teacher, rows = self.teachers[0], len(self.task.train)
        if HEADS[self.task.problem_type].per_token:
            rows = sum(self._tokenised(self._tokenizer(teacher)).lengths)
        return size_bytes(teacher.model.config, wanted, rows, computes_in_bf16(self.config)) / 1e6

    def _check_optional(self, wanted: Wanted, size_mb: float) -> None:
        """Log that outputs are too large to cache, or raise ConfigError where they must be."""
        limit_mb = self.config.teacher_cache_mb
        names = " and ".join(signal.replace("_", " ") for signal in sorted(wanted))
        large = f"the teacher's {names} of {len(self.task.train)} texts are {size_mb:.1f} MB"
        several = len(self.teachers) > 1
        if several or not self.start.reads_teacher_tokens:
            why = "several teachers" if several else "a student with a vocabulary of its own"
            raise ConfigError(
                f"teacher_cache_mb={limit_mb}: {large}, and {why} can learn only from what is "
                f"cached. Give teacher_cache_mb {math.ceil(size_mb)} or more."
            )
        logger.warning(
            "%s, more than teacher_cache_mb=%d: the teacher runs in each step", large, limit_mb
        )

    def _outputs(
        self, teacher: Teacher, known: Mapping[str, TokenDataset], wanted: Wanted
    ) -> dict[str, Any]:
        """Return a teacher's outputs; the texts are not tokenised again where they are known."""
        if not wanted:
            return {}
        path, digest = teacher.artifact.path, teacher.artifact.digest
        bf16 = computes_in_bf16(self.config)
        texts = known.get(str(path))
        if not texts:
            texts = self._tokenised(self._tokenizer(teacher))
        if HEADS[self.task.problem_type].per_token:
            return {LOGITS: teacher_token_logits(teacher.model, digest, texts, bf16)}
        return teacher_outputs(teacher.model, digest, texts, wanted, bf16)


def _logits_of(cached: Wanted) -> Wanted:
    return {signal: layers for signal, layers in cached.items() if signal == "logits"}


def averaged(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return logits (examples, labels) of the mean distribution; those of one stay as they are.

    A distribution leaves the level of its logits open, and its logarithm lies at another one in
    each text. Their level, the mean over the labels, is made that of the teachers' logits, so that
    a student may be brought to the logits themselves: teachers that agree give their own.
    """
    if len(logits) == 1:
        return logits[0]
    together = torch.stack(list(logits))  # (teachers, examples, labels)
    mean = together.log_softmax(-1).logsumexp(0)
    level = together.mean((0, -1)).unsqueeze(-1)  # (examples, 1)
    return mean - mean.mean(-1, keepdim=True) + level


# --- from distill.distillation.unlabelled
# Texts without labels that a student learns from, and the filters that leave some of them out.
#
# TEXT_FILTERS go by the text alone, OUTPUT_FILTERS by what the teachers make of it. Texts that
# score
# a model or choose its settings are always left out: nothing learns from them, labelled or not.

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


# --- from distill.distillation.texts
# The rewritten texts that a student learns from.


def with_augmented(
    task: Task, teachers: Sequence[Teacher], start: Start, config: AugmentedConfig
) -> Task:
    """Return the task with the rewritten texts that the config asks for.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: their words cannot be had, or one of
            those who read them would read something else.
    """
    first, *_ = teachers
    readers = (start.source, *(str(teacher.artifact.path) for teacher in teachers))
    return augmented(task, first.artifact, first.model, readers, config)
