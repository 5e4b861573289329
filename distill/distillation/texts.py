"""Training texts of a student, with cached outputs of its teachers.

Unlabelled texts are added. Filters leave some out, by the text alone or by the teachers' outputs.
Texts that score a model or choose its settings are always left out: no model learns from them,
labelled or not.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Stopwatch
from bertender.core.errors import ConfigError
from bertender.metrics.metric import is_labelled
from bertender.models.families import most_tokens
from bertender.problems.problem import Outputs
from bertender.tasks.loading import SAMPLE_SEED, unlabelled_texts
from bertender.tasks.rows import SkippedRows, stop, together
from bertender.tasks.task import Split, Task
from bertender.tasks.teacher_files import TeacherFile
from bertender.tasks.text_files import read_unlabelled
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.text.windows import windows_of
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TokenDataset, token_dataset
from bertender.training.heads import head_of
from bertender.training.heads.head import WEIGHT
from distill.distillation.config import DistillConfig, FilteredConfig, UnlabelledConfig
from distill.distillation.start import Start
from distill.losses.signals import Wanted, joined
from distill.methods.method import Method
from distill.teachers.encoders import Teacher, joined_logits
from distill.teachers.files import FileTeacher
from distill.teachers.outputs import (
    LOGITS,
    cacheable,
    rows_at,
    size_bytes,
    teacher_outputs,
    teacher_token_logits,
)

logger = logging.getLogger(__name__)

LOGITS_ALONE: Wanted = {"logits": frozenset()}
LeavesOut = Callable[[Example], bool]
"""Returns whether a text is left out; called once for each text, in order."""


def texts_of_task(config: UnlabelledConfig, task: Task) -> Sequence[Example]:
    """Return the unlabelled texts that come with a task, where the config asks for some."""
    return unlabelled_texts(task) if config.unlabelled_texts else ()


def with_unlabelled(
    task: Task, config: FilteredConfig, file: TeacherFile | None = None
) -> tuple[Task, Mapping[str, int]]:
    """Add the unlabelled texts that pass the filters to a task's training examples.

    Bad rows are left out and listed with the task's own.

    Args:
        task: task with its own training examples.
        config: settings of the texts and filters.
        file: a teacher file, whose texts are added, with gold labels where it has some.

    Returns:
        The task, its own training examples first, and how many texts each filter left out.

    Raises:
        DataError: the file is malformed.
    """
    if not config.learns_unlabelled:
        return task, {}
    skipped = SkippedRows()
    of_file: Sequence[Example] = ()
    if config.unlabelled is not None:
        bad_row = skipped if task.skips_bad_rows else stop
        of_file = read_unlabelled(config.unlabelled, task, bad_row)
    filters, left_out = dict(text_filters(task, config)), Counter[str]()
    if file is not None and isinstance(config, DistillConfig) and config.min_confidence:
        confidence, least = file.confidence(), config.min_confidence
        filters["confidence"] = lambda text: confidence[text] < least
    sources = (
        ((), None) if file is None else _sampled(file, task.source.get("max_train")),
        (of_file, config.max_unlabelled),
        (map(task.problem.to_example, texts_of_task(config, task)), config.unlabelled_texts),
    )
    added = [
        example
        for texts, most in sources
        for example in islice(_filtered(texts, filters, left_out), most)
    ]
    bad_rows = together(task.left_out, skipped.report(), file.left_out if file else None)
    extended = replace(task.with_unlabelled(added), left_out=bad_rows)
    if file is not None:
        train = extended.train
        gold = [
            file.gold_by_text.get(example, target)
            for example, target in zip(train.examples, train.label_ids, strict=True)
        ]
        extended = replace(extended, train=replace(train, label_ids=tuple(gold)))
    return extended, dict(left_out)


def _sampled(file: TeacherFile, most: int | None) -> tuple[Sequence[Example], int | None]:
    """Return the texts of a teacher file, shuffled if limited since the file may be sorted, and the
    limit."""
    if most is None:
        return file.examples, None
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(file.examples))
    return [file.examples[row] for row in order], most


def text_filters(task: Task, config: FilteredConfig) -> Mapping[str, LeavesOut]:
    """Return filters by name that read the text alone; a pair counts the words of both texts."""
    asked = task.problem.asked
    held_out = {*map(folded, asked((*task.dev.examples, *task.reserved)))}
    selection = {*map(folded, asked(task.selection.examples))}
    least, most = config.unlabelled_min_words or 0, config.unlabelled_max_words or math.inf
    filters: dict[str, LeavesOut] = {
        "held_out": lambda text: folded(text) in held_out,
        "selection": lambda text: folded(text) in selection,
        "length": lambda text: not least <= sum(len(part.split()) for part in text) <= most,
    }
    if config.unlabelled_distinct:
        known = {*map(folded, asked(task.train.examples))}

        def is_copy(text: Example) -> bool:
            before = len(known)
            known.add(folded(text))
            return len(known) == before

        filters["copies"] = is_copy
    return filters


def without_held_out(copies: Split, task: Task) -> Split:
    """Return rewritten texts without those that equal a held-out or validation text of the task."""
    asked = task.problem.asked
    judging = asked((*task.dev.examples, *task.reserved, *task.selection.examples))
    known = {*map(folded, judging)}
    is_new = [known.isdisjoint(map(folded, asked((each,)))) for each in copies.examples]
    return copies.where(is_new)


def folded(example: Example) -> Example:
    """Return an example in lower case, with single spaces between words."""
    return tuple(" ".join(text.casefold().split()) for text in example)


def _filtered(
    texts: Iterable[Example], filters: Mapping[str, LeavesOut], left_out: Counter[str]
) -> Iterator[Example]:
    """Yield texts that pass all filters; count each other text for the first filter it fails."""
    for text in texts:
        reason = next((name for name, leaves_out in filters.items() if leaves_out(text)), None)
        if reason is None:
            yield text
        else:
            left_out[reason] += 1


def remaining(
    task: Task, config: DistillConfig, logits: Callable[[], Sequence[torch.Tensor]]
) -> tuple[tuple[bool, ...], Mapping[str, int]]:
    """Return which training texts pass the filters on teacher outputs, and how many each leaves
    out. All labelled texts stay.

    Args:
        task: task with its unlabelled texts.
        config: settings of the filters.
        logits: returns each teacher's logits (texts, labels) on the training texts; called only
            where a filter is set.
    """
    kept, left_out = torch.ones(len(task.train), dtype=torch.bool), {}
    if config.unlabelled_max_entropy or config.unlabelled_agreement:
        outputs, gone, head = logits(), {}, head_of(task.problem)
        if config.unlabelled_max_entropy:
            gone["entropy"] = head.entropy(head.averaged(outputs)) > config.unlabelled_max_entropy
        if config.unlabelled_agreement:
            rows = np.arange(len(task.train))
            decided = np.stack(
                [task.problem.decisions(Outputs(each.numpy(), rows)) for each in outputs]
            )
            gone["agreement"] = torch.from_numpy((decided != decided[0]).any((0, -1)))
        unlabelled = ~torch.tensor([*map(is_labelled, task.train.label_ids)])
        for name, texts in gone.items():
            left_out[name] = int((kept & unlabelled & texts).sum())
            kept &= ~(unlabelled & texts)
    return tuple(kept.tolist()), {name: count for name, count in left_out.items() if count}


@dataclass(frozen=True)
class TrainingTexts:
    """Training texts of a student, and the teachers whose outputs it learns."""

    teachers: Sequence[Teacher | FileTeacher]
    """Logits of several teachers are averaged and always cached; states are the first teacher's."""
    start: Start
    """The model that the student starts from."""
    task: Task
    """Its training texts, which the teachers read. Where words have labels, only logits are
    cached."""
    config: DistillConfig
    kept: tuple[bool, ...] = ()
    """Whether each text is learned from; empty for all."""
    known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Tokenizers and tokenised texts until `examples` returns, since each is wanted more than once;
    a changed copy has the same."""

    @property
    def learned(self) -> Task:
        """The task with only the texts that are learned from."""
        train = self.task.train
        return replace(self.task, train=train.where(self.kept)) if self.kept else self.task

    @property
    def per_token(self) -> bool:
        """Whether there are logits for each token of a text."""
        return head_of(self.task.problem).per_token

    def with_copies(self, texts: Split) -> TrainingTexts:
        """Return a copy with more texts at the end, all of which are learned from."""
        kept = (*self.kept, *(True for _ in texts.examples)) if self.kept else ()
        return replace(self, task=replace(self.task, train=self.task.train + texts), kept=kept)

    def logits(self, tokenizer: PreTrainedTokenizerBase) -> list[torch.Tensor]:
        """Return each teacher's cached logits (texts, labels) on all texts; teachers of one head
        each give one joined tensor.

        Args:
            tokenizer: the student's.
        """
        known, head = self._tokenised_for(tokenizer)[1], head_of(self.task.problem)
        own = [
            head.of_examples(self._outputs(each, known, LOGITS_ALONE)[LOGITS])
            for each in self.teachers
        ]
        if self.teachers[0].head is None:
            return own
        return [joined_logits(self.teachers, own, head)]

    def targets(self, tokenizer: PreTrainedTokenizerBase) -> Sequence[Any]:
        """Return the student's targets: the labels, or the teachers' numbers where no text has a
        label. `tokenizer` is the student's."""
        head = head_of(self.task.problem)
        return head.known_targets(
            self.learned.train.label_ids, lambda: head.averaged(self.logits(tokenizer))
        )

    def cached(self, method: Method, student: PreTrainedModel) -> Wanted:
        """Return the teacher outputs to cache before training.

        The teacher computes all others in each step.

        Args:
            method: its phases list the signals that they read of the first teacher.
            student: its depth decides which layers.

        Raises:
            ConfigError: outputs that must be cached are larger than the config allows.
        """
        first, several = self.teachers[0], len(self.teachers) > 1
        depths = [model.config.num_hidden_layers for model in (student, first.model)]
        reads = [phase.reads(*depths) for phase in method.at(depths[0]).phases]
        wanted = joined((cacheable(reads), LOGITS_ALONE if several else {}))
        rows = len(self.task.train)
        if self.per_token:
            wanted = _logits_only(wanted)
            rows = sum(self._tokenised(self._tokenizer(first)).lengths)
        elif head_of(self.task.problem).several_rows:
            rows = sum(self._tokenised(self._tokenizer(first)).counts or ())
        if (
            "sentence_states" in wanted
            and not self.start.reads_teacher_tokens
            and windows_of(load_tokenizer(first.path))
        ):
            raise ConfigError(
                f"method={method.name!r}: it compares states window by window, and the student "
                "reads other windows than its teacher. Leave out --student and --vocab-size, or "
                "take a method that learns from logits alone, such as pd."
            )
        bytes_at_most = size_bytes(first.model.config, wanted, rows, computes_in_bf16(self.config))
        size_mb, limit_mb = bytes_at_most / 1e6, self.config.teacher_cache_mb
        if size_mb <= limit_mb:
            return wanted
        names = " and ".join(signal.replace("_", " ") for signal in sorted(wanted))
        large = f"the teacher's {names} of {len(self.task.train)} texts are {size_mb:.1f} MB"
        if several or not self.start.reads_teacher_tokens:
            why = "several teachers" if several else "a student with a vocabulary of its own"
            raise ConfigError(
                f"teacher_cache_mb={limit_mb}: {large}, and {why} can learn only from what is "
                f"cached. Give teacher_cache_mb {math.ceil(size_mb)} or more."
            )
        logger.warning(
            "%s, more than teacher_cache_mb=%d: the teacher runs in each step", large, limit_mb
        )
        return {}

    def examples(
        self, cached: Wanted, tokenizer: PreTrainedTokenizerBase, clock: Stopwatch
    ) -> TokenDataset:
        """Tokenise the texts for the student, with the teachers' cached outputs as columns.

        Where student and first teacher share tokens, the teacher's tokenizer reads the texts, since
        it also gives segments; otherwise `tokenizer`, the student's. Texts are cut to the student's
        longest input.

        Several teachers, each with its own tokens, give the logits of their mean distribution, like
        MT-DNN's ensembles (Liu et al. 2019, arXiv 1904.09482, section 3); states are the first
        teacher's.
        """
        examples, known = self._tokenised_for(tokenizer)
        with clock.running():
            first, *more = (
                self._outputs(teacher, known, cached if place == 0 else _logits_only(cached))
                for place, teacher in enumerate(self.teachers)
            )
        if LOGITS in first:
            own = [first[LOGITS], *(each[LOGITS] for each in more)]
            first[LOGITS] = joined_logits(self.teachers, own, head_of(self.task.problem))
        if LOGITS in first and (weights := self._weights()) is not None:
            examples = examples.with_columns(**{WEIGHT: weights})
        units = head_of(self.task.problem).spreads(self.targets(tokenizer))
        self.known.clear()
        examples = examples.with_columns(
            **{name: [each] * len(examples) for name, each in units.items()}
        )
        if self.per_token and first:
            padding = examples.padding.with_others(**dict.fromkeys(first, 0))
            return TokenDataset({**examples.columns, **first}, padding)
        if all(self.kept):
            return examples.with_columns(**first)
        numbers = [number for number, is_kept in enumerate(self.kept) if is_kept]
        chosen = {name: rows_at(column, numbers) for name, column in first.items()}
        return examples.where(self.kept).with_columns(**chosen)

    def _tokenised_for(
        self, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[TokenDataset, Mapping[str, TokenDataset]]:
        """Return the texts in the student's tokens, and texts in a teacher's tokens by its path."""
        shared, source = self.start.reads_teacher_tokens, self.teachers[0].path
        own = self._tokenizer_at(source, longest_input(tokenizer)) if shared else tokenizer
        examples = self._tokenised(own)
        return examples, {str(source): examples} if shared else {}

    def _tokenised(
        self, tokenizer: PreTrainedTokenizerBase, teacher: Teacher | None = None
    ) -> TokenDataset:
        """Return the tokenised texts; with a teacher, for its own head."""
        task = self.task if teacher is None else teacher.task_of(self.task, labelled=False)
        key = id(tokenizer), id(task.train)
        if key not in self.known:  # with both, whose ids then stay theirs
            dataset = token_dataset(task.train, tokenizer, task.problem_type)
            self.known[key] = tokenizer, task.train, dataset
        found: TokenDataset = self.known[key][-1]
        return found

    def _tokenizer_at(self, path: Path, longest: int) -> PreTrainedTokenizerBase:
        if (path, longest) not in self.known:
            self.known[path, longest] = load_tokenizer(path, longest)
        found: PreTrainedTokenizerBase = self.known[path, longest]
        return found

    def _tokenizer(self, teacher: Teacher | FileTeacher) -> PreTrainedTokenizerBase:
        """Return a teacher's tokenizer, with the config's longest input, or else its own."""
        given = self.config.max_length
        if given is not None:
            given = min(given, most_tokens(teacher.model.config) or given)
        given = given or longest_input(load_tokenizer(teacher.path))
        return self._tokenizer_at(teacher.path, given)

    def _weights(self) -> torch.Tensor | None:
        """Return the weight of each text: the mean confidence of teacher files that have some."""
        files = [each for each in self.teachers if isinstance(each, FileTeacher)]
        found = [each.weights(self.task.train.examples) for each in files]
        known = [each for each in found if each is not None]
        return torch.stack(known).mean(0) if known else None

    def _outputs(
        self, teacher: Teacher | FileTeacher, known: Mapping[str, TokenDataset], wanted: Wanted
    ) -> dict[str, Any]:
        """Return a teacher's outputs; `known` has texts that are tokenised already."""
        if not wanted:
            return {}
        if isinstance(teacher, FileTeacher):
            return {LOGITS: teacher.logits(self.task.train.examples)}
        path, digest = teacher.path, teacher.digest
        bf16 = computes_in_bf16(self.config)
        texts = known.get(str(path)) or self._tokenised(self._tokenizer(teacher), teacher)
        if self.per_token and teacher is self.teachers[0]:  # the others have heads that label texts
            return {LOGITS: teacher_token_logits(teacher.model, digest, texts, bf16)}
        return teacher_outputs(teacher.model, digest, texts, wanted, bf16)


def _logits_only(cached: Wanted) -> Wanted:
    return {signal: layers for signal, layers in cached.items() if signal == "logits"}
