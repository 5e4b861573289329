"""The texts that a student learns from, with what is kept of its teachers' answers beside them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError
from bertender.core.timing import Stopwatch
from bertender.tasks.task import Task
from bertender.text.batch import load_tokenizer, longest_input
from bertender.training.config import TrainingConfig, computes_in_bf16
from bertender.training.examples import TokenDataset
from bertender.training.heads import HEADS
from distill.data import token_dataset
from distill.distillation.start import Start
from distill.losses.signals import Wanted, joined
from distill.methods.method import Method
from distill.teachers.outputs import (
    LOGITS,
    size_bytes,
    teacher_outputs,
    teacher_token_logits,
    worth_keeping,
)
from distill.teachers.teacher import Teacher

__all__ = ["averaged", "choose_cached", "student_examples"]

logger = logging.getLogger(__name__)


def choose_cached(
    method: Method,
    student: PreTrainedModel,
    teachers: Sequence[Teacher],
    start: Start,
    task: Task,
    bf16: bool,
    limit_mb: int,
) -> Wanted:
    """Return what is computed before the training and kept on disk; the rest is in each step.

    Args:
        method: its phases say what they read of the first teacher.
        student: how deep it is says of which layers.
        teachers: the logits of several are averaged, and so are always kept.
        start: what the student starts from.
        task: its training texts are what the student learns from; where words have labels, only
            logits are cached.
        bf16: whether the run computes in bf16.
        limit_mb: nothing is kept where all of it would be larger.

    Raises:
        ConfigError: what must be kept is larger.
    """
    depth, teacher_depth = (m.config.num_hidden_layers for m in (student, teachers[0].model))
    reads = [phase.reads(depth, teacher_depth) for phase in method.at(depth).phases]
    several: Wanted = {"logits": frozenset()} if len(teachers) > 1 else {}
    cached = joined((worth_keeping(reads), several))
    per_token, texts, rows = HEADS[task.problem_type].per_token, len(task.train), len(task.train)
    if per_token:
        cached, rows = _logits_of(cached), _tokens_of(task, teachers[0])
    size_mb = size_bytes(teachers[0].model.config, cached, rows, bf16) / 1e6
    if size_mb <= limit_mb:
        return cached
    large = f"the teacher's {_words(cached)} of {texts} texts are {size_mb:.1f} MB"
    if several or not start.reads_teacher_tokens:
        why = "several teachers" if several else "a student with a vocabulary of its own"
        raise ConfigError(
            f"teacher_cache_mb={limit_mb}: {large}, and {why} can learn only from what is kept. "
            f"Give teacher_cache_mb {math.ceil(size_mb)} or more."
        )
    logger.warning(
        "%s, more than teacher_cache_mb=%d: the teacher runs in each step", large, limit_mb
    )
    return {}


def _tokens_of(task: Task, teacher: Teacher) -> int:
    """Return how many tokens the training texts have, at most."""
    tokenizer = load_tokenizer(teacher.artifact.path)
    longest = longest_input(tokenizer)
    return sum(token_dataset(task.train, tokenizer, longest, task.problem_type).lengths)


def _words(wanted: Wanted) -> str:
    return " and ".join(signal.replace("_", " ") for signal in sorted(wanted))


def student_examples(
    cached: Wanted,
    teachers: Sequence[Teacher],
    start: Start,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: TrainingConfig,
    clock: Stopwatch,
) -> TokenDataset:
    """Tokenise the texts for the student, with what is kept of the teachers as columns.

    Where the first teacher reads the same tokens, they are its own tokenizer's, which gives the
    segments too that a student may not take; otherwise `tokenizer`'s, the student's. No text is
    longer than the student takes.

    Several teachers give the logits of their mean distribution, as MT-DNN's ensembles do (Liu et
    al. 2019, arXiv 1904.09482, section 3), each in its own tokens; states are the first one's.
    """
    shared = start.reads_teacher_tokens
    source = teachers[0].artifact.path
    longest = min(config.max_length, longest_input(tokenizer))
    own = load_tokenizer(source) if shared else tokenizer
    examples = token_dataset(task.train, own, longest, task.problem_type)
    known = {str(source): examples} if shared else {}
    with clock.running():
        first, *more = (
            _outputs(teacher, task, config, known, cached if place == 0 else _logits_of(cached))
            for place, teacher in enumerate(teachers)
        )
    if LOGITS in first:
        first[LOGITS] = averaged([first[LOGITS], *(each[LOGITS] for each in more)])
    if HEADS[task.problem_type].per_token and first:
        padding = examples.padding.beside(**dict.fromkeys(first, 0))
        return TokenDataset({**examples.columns, **first}, padding)
    return examples.with_columns(**first)


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


def _outputs(
    teacher: Teacher,
    task: Task,
    config: TrainingConfig,
    known: Mapping[str, TokenDataset],
    wanted: Wanted,
) -> dict[str, Any]:
    """Return a teacher's answers; the texts are not tokenised again where they are known."""
    if not wanted:
        return {}
    path, bf16 = teacher.artifact.path, computes_in_bf16(config)
    texts = known.get(str(path)) or token_dataset(
        task.train, load_tokenizer(path), config.max_length, task.problem_type
    )
    if HEADS[task.problem_type].per_token:
        digest = teacher.artifact.digest
        return {LOGITS: teacher_token_logits(teacher.model, digest, texts, bf16)}
    return teacher_outputs(teacher.model, teacher.artifact.digest, texts, wanted, bf16)
