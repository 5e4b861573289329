"""Pruning in rounds: score what remains, cut the least important, recover."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import PruningRound, RescaledPart
from bertender.core.progress import track
from bertender.models.families import most_tokens
from bertender.models.importing import open_artifact
from bertender.models.own_models import heads_of, neurons_of
from bertender.tasks.task import Task
from bertender.text.batching import length_buckets
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TensorBatch, TokenDataset, token_dataset
from bertender.training.heads import HEADS, Head
from bertender.training.loop import TrainingReport
from distill.distillation.distillation import Distillation, phases_with_head
from distill.distillation.texts import with_unlabelled
from distill.distillation.unlabelled_config import FilteredConfig, UnlabelledConfig
from distill.losses.terms import HardLabels, SoftLabels
from distill.methods.method import Phase
from distill.pruning.config import PruneConfig
from distill.pruning.cutting import Remaining, cut, least_missed, without_layers
from distill.pruning.importance import Across, Importance, chosen, importance_of, shares_of_rounds
from distill.pruning.latency import LatencyTable, Target, fitting
from distill.pruning.rescaling import rescale
from distill.teachers.outputs import LOGITS, Column, teacher_outputs, teacher_token_logits
from distill.teachers.teacher import Teacher, on_device
from distill.trained import choice_score, epoch_score

# --- from distill.pruning.rounds
# Pruning in rounds: score what remains, cut the least important, mend the rest.
#
# It is mended by training on a teacher's outputs (the unpruned model's by default), or by
# rescaling,
# or not at all.

Choice = Callable[[Importance], Remaining]
"""importance of heads and neurons, as measured -> those that remain"""

RECOVERY = Phase("recovery", (SoftLabels(weight=1.0, temperature=1.0), HardLabels(weight=1.0)))
"""Losses of a pruned model: on the outputs of its teacher, and on the labels, where there are
some."""


@dataclass(frozen=True)
class PruningContext:
    """Settings and data that all rounds share."""

    unpruned: Teacher
    teacher: Teacher
    """The recovery learns from it; the unpruned model, where no other is set."""
    task: Task
    """Without unlabelled texts."""
    config: PruneConfig
    tokenizer: PreTrainedTokenizerBase
    examples: TokenDataset
    """The task's training texts, then the unlabelled ones, with the teacher's logits where they are
    learned."""
    work: Path
    description: str
    target: Target | None = None
    """How fast to become, where no shares are set."""

    @property
    def head(self) -> Head:
        """The PyTorch side of the task's problem type."""
        return HEADS[self.task.problem_type]

    def score(self, model: PreTrainedModel) -> float:
        """Return a model's score on the texts to choose by."""
        scores = choice_score(model, self.tokenizer, self.task)
        return scores[self.task.metric]

    def scored_batches(self, device: torch.device) -> Iterator[TensorBatch]:
        """Yield some of the training examples, drawn by the seed, in batches of like length."""
        config, examples, drawn = self.config, self.examples, self._drawn()
        lengths = [examples.lengths[index] for index in drawn]
        buckets = length_buckets(lengths, config.tokens_per_batch, config.batch_size)
        for bucket in track(buckets, f"{self.description}: score", len(buckets)):
            batch = examples.collate([examples[drawn[place]] for place in bucket])
            yield {name: tensor.to(device) for name, tensor in batch.items()}

    def _drawn(self) -> list[int]:
        """Return the numbers of the training examples that parts are scored on, by their labels."""
        generator = torch.Generator().manual_seed(self.config.seed)
        order: list[int] = torch.randperm(len(self.task.train), generator=generator).tolist()
        return order[: self.config.scored_texts]


def without_some_layers(
    model: PreTrainedModel, context: PruningContext
) -> tuple[PreTrainedModel, tuple[int, ...] | None]:
    """Drop as many layers as the config sets; return which remain, None where all do."""
    if not context.config.layers:
        return model, None
    batches = [*context.scored_batches(model.device)]
    stay = least_missed(model, batches, context.config.layers, context.head)
    return on_device(without_layers(model, stay)), stay


def in_rounds(
    model: PreTrainedModel, context: PruningContext
) -> tuple[PreTrainedModel, list[TrainingReport], list[PruningRound]]:
    """Cut and mend as often as the config sets; return each round's remainder and score."""
    whole = model
    stay = [list(range(count)) for count in heads_of(model.config)]
    reports: list[TrainingReport] = []
    rounds: list[PruningRound] = []
    for choose in _choices(model, context):
        importance = _importance(model, context) if choose else None
        if choose and importance:
            remaining = choose(importance)
            stay = _remaining(stay, remaining)
            model = on_device(cut(model, remaining))
        score = after_cut = context.score(model)
        rescaled = _rescaled(model, whole, context)
        if rescaled:
            score = context.score(model)
        if context.config.recovers:
            reports.append(_recover(model, context, len(reports)))
            score = reports[-1].epochs[-1][context.task.metric]
        rounds.append(
            PruningRound(
                heads=heads_of(model.config),
                neurons=neurons_of(model.config),
                score_after_cut=after_cut,
                score=score,
                head_importance=importance and _rounded(importance),
                remaining_heads=stay,
                rescaled=rescaled,
            )
        )
    return model, reports, rounds


def _remaining(heads: Sequence[Sequence[int]], remaining: Remaining) -> list[list[int]]:
    """Return each layer's heads that remain after a cut, by the numbers that they have here."""
    return [[old[new] for new in each] for old, each in zip(heads, remaining.heads, strict=True)]


def _choices(model: PreTrainedModel, context: PruningContext) -> Sequence[Choice | None]:
    """Return what chooses in each round; None where heads and neurons stay as they are."""
    config = context.config
    if context.target:
        limits_ms = context.target.limits_ms(config.rounds)
        return [
            partial(_by_time, table=context.target.table, limit_ms=limit) for limit in limits_ms
        ]
    if not config.cuts_parts:
        return [None]
    before = heads_of(model.config), neurons_of(model.config)
    shares = (shares_of_rounds(share, config.rounds) for share in (config.heads, config.ffn))
    return [
        partial(_by_share, before=before, shares=each, across=config.across)
        for each in zip(*shares, strict=True)
    ]


def _by_share(
    importance: Importance,
    before: tuple[list[int], list[int]],
    shares: tuple[float, float],
    across: Across,
) -> Remaining:
    """Return what remains when shares of the heads and of the neurons are cut."""
    scores = importance.normalised
    return Remaining(
        chosen(scores.heads, before[0], shares[0], across),
        chosen(scores.neurons, before[1], shares[1], across),
    )


def _by_time(importance: Importance, table: LatencyTable, limit_ms: float) -> Remaining:
    """Return the most important heads and neurons that fit into a time."""
    return fitting(importance.by_layer, table, limit_ms)


def _rescaled(
    model: PreTrainedModel, whole: PreTrainedModel, context: PruningContext
) -> list[RescaledPart] | None:
    """Rescale the pruned model in place, where the config asks for it; return its effect."""
    if not context.config.retraining_free:
        return None
    batches = [*context.scored_batches(model.device)]
    return rescale(model, whole, batches, per_token=context.head.per_token)


def _rounded(importance: Importance) -> list[list[float]]:
    """Return the importance of each layer's heads, to 4 digits."""
    scores = importance.normalised.heads
    return [[round(each, 4) for each in layer.tolist()] for layer in scores]


def _importance(model: PreTrainedModel, context: PruningContext) -> Importance:
    batches = context.scored_batches(model.device)
    return importance_of(
        model, context.config.importance, batches, context.config.seed, context.head
    )


def _recover(model: PreTrainedModel, context: PruningContext, number: int) -> TrainingReport:
    """Train the pruned model in place; an interrupted run continues in the round it was in."""
    recovery = Distillation(
        student=model,
        teacher=context.teacher.model,
        tokenizer=context.tokenizer,
        phases=phases_with_head([RECOVERY], context.task.problem_type),
        examples=lambda: context.examples,
        evaluate=lambda training_module, objective: epoch_score(
            training_module.student,
            context.tokenizer,
            context.task,
            context.config,
        ),
    )
    work, place = context.work / f"round-{number}", f"round {number + 1} of {context.config.rounds}"
    return recovery.run(context.config, work, f"{context.description}: {place}").last


# --- from distill.pruning.recovery_texts
# The texts that a pruned model recovers on, and the teacher whose logits it learns there.


@dataclass(frozen=True)
class RecoveryTexts:
    """Texts with a teacher's logits."""

    teacher: Teacher
    task: Task
    """With the unlabelled texts."""
    labelled: Task
    """Without them."""
    config: PruneConfig
    left_out: Mapping[str, int]
    """How many unlabelled texts were left out, by the filter."""

    def other_teacher(self, unpruned: Teacher) -> tuple[str, ...]:
        """Return the digest of a teacher that is not the unpruned model."""
        return () if self.teacher is unpruned else (self.teacher.artifact.digest,)

    def added(self) -> dict[str, Any]:
        """Return the findings on texts that were learned from beside the task's own."""
        if not (self.config.learns_unlabelled and self.config.recovers):
            return {}
        count = len(self.task.train) - len(self.labelled.train)
        return {"unlabelled_texts": count, "unlabelled_left_out": dict(self.left_out)}

    def tokenised(self, tokenizer: PreTrainedTokenizerBase, task: Task) -> TokenDataset:
        """Return a task's training texts in tokens."""
        return token_dataset(task.train, tokenizer, task.problem_type)

    def examples(self, tokenizer: PreTrainedTokenizerBase) -> TokenDataset:
        """Return the texts for the pruned model, with the teacher's logits where it recovers.

        Args:
            tokenizer: the pruned model's.
        """
        if not self.config.recovers:  # what is cut depends on labelled texts
            return self.tokenised(tokenizer, self.labelled)
        texts = self.tokenised(tokenizer, self.task)
        if HEADS[self.task.problem_type].per_token:
            padding = texts.padding.with_others(**{LOGITS: 0})
            logits = self._token_logits(longest_input(tokenizer))
            return TokenDataset({**texts.columns, LOGITS: logits}, padding)
        return texts.with_columns(**self._logits(longest_input(tokenizer)))

    def _logits(self, longest: int) -> Mapping[str, Column]:
        """Return the teacher's logits (texts, labels), cached."""
        own, bf16 = self._own_tokens(longest), computes_in_bf16(self.config)
        model, digest = self.teacher.model, self.teacher.artifact.digest
        return teacher_outputs(model, digest, own, {"logits": frozenset()}, bf16)

    def _token_logits(self, longest: int) -> tuple[torch.Tensor, ...]:
        own, bf16 = self._own_tokens(longest), computes_in_bf16(self.config)
        return teacher_token_logits(self.teacher.model, self.teacher.artifact.digest, own, bf16)

    def _own_tokens(self, longest: int) -> TokenDataset:
        """Return the texts as the teacher reads them, no more of each than the pruned model."""
        longest = min(longest, most_tokens(self.teacher.model.config) or longest)
        return self.tokenised(load_tokenizer(self.teacher.artifact.path, longest), self.task)


def recovery_texts(unpruned: Teacher, task: Task, config: PruneConfig) -> RecoveryTexts:
    """Load the teacher that is set and the unlabelled texts.

    Raises:
        ConfigError: the teacher predicts other labels.
        ModelError, NotAnArtifactError, DamagedArtifactError: it is not a classifier, or it labels
            words and reads other tokens.
        DataError: the file of unlabelled texts is wrong.
    """
    teacher = unpruned
    if config.teacher is not None:
        teacher = Teacher.load(open_artifact(config.teacher), task)
        _check_same_tokens(teacher, unpruned, task)
    texts = {name: getattr(config, name) for name in UnlabelledConfig.model_fields}
    extended = with_unlabelled(task, FilteredConfig(**texts))
    return RecoveryTexts(teacher, extended.task, task, config, extended.left_out)


def check_unlabelled_read(task: Task, config: PruneConfig) -> None:
    """Raise ConfigError for unlabelled texts where words have labels."""
    if config.learns_unlabelled and not HEADS[task.problem_type].one_label:
        raise ConfigError(
            "unlabelled, unlabelled_texts: for tasks whose texts have one label each, and task "
            f"{task.name!r} is one of {task.problem_type!r}. Leave out what is named."
        )


def _check_same_tokens(teacher: Teacher, unpruned: Teacher, task: Task) -> None:
    """Raise ModelError where a tagger would learn from the outputs on other tokens."""
    own, other = (load_tokenizer(each.artifact.path).get_vocab() for each in (unpruned, teacher))
    if HEADS[task.problem_type].per_token and own != other:
        raise ModelError(
            f"teacher={str(teacher.artifact.path)!r}: a tagger learns token by token, so that "
            "both models must read the same ones, and these do not. Leave it out, or give a "
            "teacher with the same vocabulary."
        )
