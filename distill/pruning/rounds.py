"""Pruning in rounds: score what remains, cut the least important, recover.

The model recovers by training on a teacher's outputs (the unpruned model's by default), or by
rescaling, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.fitting import epoch_score, validated
from bertender.core.build_once import directory_once
from bertender.core.errors import ModelError
from bertender.core.findings import PruningRound
from bertender.core.progress import track
from bertender.metrics.metric import is_labelled
from bertender.models.families import most_tokens
from bertender.models.importing import open_artifact
from bertender.models.own_models import heads_of, neurons_of
from bertender.tasks.task import Task
from bertender.text.batch import length_buckets
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TensorBatch, TokenDataset, token_dataset
from bertender.training.heads import head_of
from bertender.training.heads.head import Head
from bertender.training.loop import TrainingReport
from bertender.training.steps import Objective
from distill.distillation.config import FilteredConfig, UnlabelledConfig
from distill.distillation.distillation import Distillation, phases_with_head
from distill.distillation.texts import with_unlabelled
from distill.losses.terms import HardLabels, SoftLabels
from distill.methods.method import Phase
from distill.pruning.config import PruneConfig
from distill.pruning.cutting import Remaining, cut, least_missed, without_layers
from distill.pruning.importance import Importance, chosen, importance_of, shares_of_rounds
from distill.pruning.latency import Target, fitting
from distill.pruning.rescaling import rescale
from distill.teachers.encoders import Teacher, on_device
from distill.teachers.outputs import LOGITS, teacher_outputs, teacher_token_logits
from distill.tokenizers import read_alike

CHOICE_NAME = "choice.json"
RECOVERY = Phase("recovery", (SoftLabels(weight=1.0, temperature=1.0), HardLabels(weight=1.0)))
"""Losses of a pruned model: on its teacher's outputs, and on labels where texts have them."""


@dataclass(frozen=True)
class PruningContext:
    """Settings and data that all rounds share."""

    teacher: Teacher
    """Teacher of the recovery: the unpruned model, unless another is set."""
    task: Task
    """The task, without unlabelled texts."""
    config: PruneConfig
    tokenizer: PreTrainedTokenizerBase
    examples: TokenDataset
    """The task's training texts, then unlabelled ones, with the teacher's logits if recovered."""
    work: Path
    description: str
    target: Target | None = None
    """The target latency, where no shares are set."""

    @property
    def head(self) -> Head:
        """The PyTorch side of the task's problem type."""
        return head_of(self.task.problem)

    def score(self, model: PreTrainedModel) -> float:
        """Return a model's score on the validation texts."""
        return validated(model, self.tokenizer, self.task)[0].value

    def scored_batches(self, device: torch.device) -> Iterator[TensorBatch]:
        """Yield a seeded sample of the labelled examples, in batches of similar length."""
        config, examples = self.config, self.examples
        generator = torch.Generator().manual_seed(config.seed)
        # a question's windows are examples of their own
        own = [row for row, label in enumerate(examples.columns["labels"]) if is_labelled(label)]
        own = own or [*range(len(self.task.train))]  # vectors of single texts have no labels
        order: list[int] = torch.randperm(len(own), generator=generator).tolist()
        drawn = [own[place] for place in order[: config.scored_texts]]
        lengths = [examples.lengths[index] for index in drawn]
        counts = examples.counts and [examples.counts[index] for index in drawn]
        buckets = length_buckets(lengths, config.tokens_per_batch, config.batch_size, counts=counts)
        for bucket in track(buckets, f"{self.description}: score", len(buckets)):
            batch = examples.batch([drawn[place] for place in bucket])
            yield {name: tensor.to(device) for name, tensor in batch.items()}


def without_some_layers(
    model: PreTrainedModel, context: PruningContext
) -> tuple[PreTrainedModel, tuple[int, ...] | None]:
    """Drop as many layers as the config sets; return the remaining ones, None for all."""
    if not context.config.layers:
        return model, None

    def choose() -> tuple[int, ...]:
        batches = [*context.scored_batches(model.device)]
        return least_missed(model, batches, context.config.layers, context.head)

    remaining = tuple(chosen_once(context.work / "layers", choose))
    return on_device(without_layers(model, remaining)), remaining


def in_rounds(
    model: PreTrainedModel, context: PruningContext
) -> tuple[PreTrainedModel, TrainingReport, list[PruningRound]]:
    """Cut and recover as often as the config sets.

    Returns:
        The pruned model, the training report of all recoveries, and a record of each round.
    """
    config, whole = context.config, model
    before = heads_of(model.config), neurons_of(model.config)
    remaining_heads = [list(range(count)) for count in before[0]]
    importance_of_heads = None
    recovery = TrainingReport(steps=0)
    rounds: list[PruningRound] = []
    # without heads or neurons to cut, one round only recovers
    for number in range(config.rounds if config.cuts_parts else 1):
        if config.cuts_parts:
            choose = partial(_choice, model, before, number, context)
            choice = chosen_once(context.work / f"cut-{number}", choose)
            importance_of_heads = choice["head_importance"]
            remaining = Remaining(
                *(tuple(map(tuple, choice[part])) for part in ("heads", "neurons"))
            )
            remaining_heads = [
                [old[new] for new in layer]
                for old, layer in zip(remaining_heads, remaining.heads, strict=True)
            ]
            model = on_device(cut(model, remaining))
        score = after_cut = context.score(model)
        rescaled = None
        if config.retraining_free:
            batches = context.scored_batches(model.device)
            rescaled = rescale(model, whole, [*batches], per_token=context.head.per_token)
            score = context.score(model)
        if config.recovers:
            report = _recover(model, context, number)
            recovery.steps += report.steps
            recovery.losses += report.losses
            recovery.epochs += report.epochs
            score = report.epochs[-1][context.task.metric]
        rounds.append(
            PruningRound(
                heads=heads_of(model.config),
                neurons=neurons_of(model.config),
                score_after_cut=after_cut,
                score=score,
                head_importance=importance_of_heads,
                remaining_heads=remaining_heads,
                rescaled=rescaled,
            )
        )
    return model, recovery, rounds


def chosen_once(directory: Path, choose: Callable[[], Any]) -> Any:
    """Return a choice as plain values, in a resumed run that of the first.

    Computed again, a near tie might end otherwise, and the checkpoints are of the first choice.
    """

    def write(draft: Path) -> None:
        (draft / CHOICE_NAME).write_text(json.dumps(choose()), encoding="utf-8")

    directory_once(directory, "choice", write)
    return json.loads((directory / CHOICE_NAME).read_bytes())


def _choice(
    model: PreTrainedModel,
    before: tuple[Sequence[int], Sequence[int]],
    number: int,
    context: PruningContext,
) -> dict[str, Any]:
    """Return the heads and neurons that remain after a round, and the importance of the heads."""
    config, batches = context.config, context.scored_batches(model.device)
    importance = importance_of(model, config.importance, batches, config.seed, context.head)
    remaining = _remaining(importance, before, number, context)
    of_heads = [[round(each, 4) for each in own.tolist()] for own in importance.normalised.heads]
    return {"heads": remaining.heads, "neurons": remaining.neurons, "head_importance": of_heads}


def _remaining(
    importance: Importance,
    before: tuple[Sequence[int], Sequence[int]],
    number: int,
    context: PruningContext,
) -> Remaining:
    """Return the heads and neurons that remain after a round.

    Args:
        importance: importance of the heads and neurons before this round.
        before: number of heads and neurons in each layer before the first round.
        number: number of the round, from 0.
        context: target latency, or shares to cut.
    """
    config = context.config
    if context.target:
        limit_ms = context.target.limits_ms(config.rounds)[number]
        return fitting(importance.by_layer, context.target.table, limit_ms)
    heads, neurons = (
        shares_of_rounds(share, config.rounds)[number] for share in (config.heads, config.ffn)
    )
    scores = importance.normalised
    return Remaining(
        chosen(scores.heads, before[0], heads, config.across),
        chosen(scores.neurons, before[1], neurons, config.across),
    )


class _Recovery(Distillation):
    """Training of a pruned model on its teacher's outputs and on the labels."""

    def __init__(self, model: PreTrainedModel, context: PruningContext) -> None:
        phases = phases_with_head([RECOVERY], head_of(context.task.problem))
        super().__init__(model, context.teacher.model, context.tokenizer, phases)
        self.context = context

    def examples(self) -> TokenDataset:
        return self.context.examples

    def evaluate(self, training_module: Any, objective: Objective) -> dict[str, float]:
        task, config = self.context.task, self.context.config
        return epoch_score(training_module.student, self.tokenizer, task, config)


def _recover(model: PreTrainedModel, context: PruningContext, number: int) -> TrainingReport:
    """Train the pruned model in place; an interrupted run continues in its round."""
    recovery = _Recovery(model, context)
    work, place = context.work / f"round-{number}", f"round {number + 1} of {context.config.rounds}"
    return recovery.run(context.config, work, f"{context.description}: {place}").last


@dataclass(frozen=True)
class RecoveryTexts:
    """Texts for the recovery of a pruned model, and the teacher whose logits it learns."""

    teacher: Teacher
    task: Task
    """The task with unlabelled texts."""
    labelled: Task
    """The task without unlabelled texts."""
    config: PruneConfig
    left_out: Mapping[str, int]
    """Number of unlabelled texts left out, by filter."""

    def added(self) -> dict[str, Any]:
        """Return the findings on texts that were added to the task's own."""
        if not (self.config.learns_unlabelled and self.config.recovers):
            return {}
        count = len(self.task.train) - len(self.labelled.train)
        return {"unlabelled_texts": count, "unlabelled_left_out": dict(self.left_out)}

    def examples(self, tokenizer: PreTrainedTokenizerBase) -> TokenDataset:
        """Return the tokenised texts, with the teacher's logits if the model is to recover.

        Args:
            tokenizer: the pruned model's.
        """
        problem_type = self.task.problem_type
        if not self.config.recovers:  # importance reads labelled texts alone
            return token_dataset(self.labelled.train, tokenizer, problem_type)
        texts = token_dataset(self.task.train, tokenizer, problem_type)
        teacher, digest = self.teacher.model, self.teacher.digest
        # the teacher's input is cut at the pruned model's longest input
        longest = longest_input(tokenizer)
        longest = min(longest, most_tokens(teacher.config) or longest)
        its_texts = texts
        if self.config.teacher or self.config.vocab or longest < longest_input(tokenizer):
            its_tokenizer = load_tokenizer(self.teacher.artifact.path, longest)
            its_texts = token_dataset(self.task.train, its_tokenizer, problem_type)
        bf16 = computes_in_bf16(self.config)
        if self.task.problem.per_token:
            padding = texts.padding.with_others(**{LOGITS: 0})
            logits = teacher_token_logits(teacher, digest, its_texts, bf16)
            return TokenDataset({**texts.columns, LOGITS: logits}, padding)
        columns = teacher_outputs(teacher, digest, its_texts, {"logits": frozenset()}, bf16)
        return texts.with_columns(**columns)


def recovery_texts(unpruned: Teacher, task: Task, config: PruneConfig) -> RecoveryTexts:
    """Load the recovery's teacher and the unlabelled texts.

    Raises:
        ConfigError: the teacher predicts other labels.
        ModelError, NotAnArtifactError, DamagedArtifactError: the teacher is not a classifier, or it
            labels words and reads other tokens.
        DataError: the file of unlabelled texts is malformed.
    """
    teacher = unpruned
    if config.teacher is not None:
        teacher = Teacher.load(open_artifact(config.teacher), task)
        own, other = (load_tokenizer(each.artifact.path) for each in (unpruned, teacher))
        examples = task.train.examples
        if head_of(task.problem).per_token and not read_alike(own, other, examples):
            raise ModelError(
                f"teacher={str(teacher.artifact.path)!r}: a tagger learns token by token, so that "
                "both models must read the same ones, and these do not. Leave it out, or give a "
                "teacher with the same tokenizer."
            )
    texts = {name: getattr(config, name) for name in UnlabelledConfig.model_fields}
    extended, left_out = with_unlabelled(task, FilteredConfig(**texts))
    return RecoveryTexts(teacher, extended, task, config, left_out)
