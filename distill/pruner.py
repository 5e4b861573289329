"""Pruning: the least important heads and neurons of a classifier go, and the rest recovers.

torch artifact + task + PruneConfig
  -> in each round: importance, choice, cut, and training on the unpruned model's answers
  -> torch artifact of the pruned form
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, refuse_unwritable
from bertender.core.batching import length_buckets
from bertender.core.distributed import on_main_process
from bertender.core.errors import AccuracyError, ConfigError, UnknownNameError
from bertender.core.examples import TensorBatch, TokenDataset
from bertender.core.progress import track
from bertender.core.pruned import heads_of, neurons_of
from bertender.core.text import load_tokenizer
from bertender.core.training import TrainingConfig, TrainingReport, computes_in_bf16, planned, train
from bertender.core.work import work_directory
from bertender.tasks.task import Split, Task
from distill.answers import teacher_answers
from distill.corpus import Corpus
from distill.data import token_dataset
from distill.methods import Phase
from distill.phases import DistillationObjective
from distill.pruning.choice import Across, chosen, rounds_of
from distill.pruning.cutting import cut, refuse_uncuttable
from distill.pruning.importance import IMPORTANCES, Importance, importance_of
from distill.pruning.layers import least_missed, without_layers
from distill.pruning.vocabulary import cut_vocabulary, needed_pieces, read
from distill.sources import Teacher, on_device
from distill.teacher import dev_score, write_classifier
from distill.terms import HardLabels, SoftLabels
from distill.trainee import Trainee

__all__ = ["OF_THE_TASK", "PruneConfig", "prune"]

OF_THE_TASK = "task"
"""In the place of a corpus: the task's own training texts."""
RECOVERY = Phase("recovery", (SoftLabels(weight=1.0, temperature=1.0), HardLabels(weight=1.0)))
"""What a pruned model learns from: the answers of the unpruned one, and the labels."""


def _known_importance(name: str) -> str:
    if name not in IMPORTANCES:
        raise UnknownNameError("importance", name, IMPORTANCES)
    return name


class PruneConfig(TrainingConfig):
    """What to prune, and how to recover. Training settings are those of each round's recovery."""

    heads: float = Field(0.0, ge=0, lt=1, description="share of the attention heads to cut")
    ffn: float = Field(0.0, ge=0, lt=1, description="share of the feed-forward neurons to cut")
    layers: int = Field(0, ge=0, description="layers to drop, those that the loss misses least")
    importance: Annotated[str, AfterValidator(_known_importance)] = Field(
        "gradient", description=f"what they are worth by: {', '.join(IMPORTANCES)}"
    )
    across: Across = Field(
        "model", description="cut the least important of the whole model, or of each layer"
    )
    vocab: str | None = Field(
        None,
        description="keep the word pieces that these texts need: task, or a corpus (docs, .txt, "
        ".txt.xz, .parquet, a hub data set)",
    )
    vocab_floor: int = Field(1, ge=1, description="keep pieces that occur so often there")
    rounds: int = Field(1, ge=1, description="cut in so many steps, scored anew before each")
    scored_texts: int = Field(
        1000, ge=1, description="training texts, at most, that importance is measured on"
    )
    recover: bool = Field(True, description="train after each cut on the unpruned model's answers")
    max_drop: float | None = Field(
        None, ge=0, description="most points of the metric to lose; more is refused"
    )
    epochs: int = Field(1, ge=1, description="passes over the training examples in each recovery")


@dataclass(frozen=True)
class _Job:
    """What all rounds share."""

    teacher: Teacher
    task: Task
    config: PruneConfig
    tokenizer: PreTrainedTokenizerBase
    examples: TokenDataset
    """With the unpruned model's logits."""
    work: Path
    description: str

    def score(self, model: PreTrainedModel) -> dict[str, float]:
        return dev_score(model, self.tokenizer, self.task, self.config.max_length)


def prune(parent: Artifact, task: Task, config: PruneConfig, out: Path) -> Artifact:
    """Cut a classifier's least important heads and neurons and write it as a torch artifact.

    Raises:
        ConfigError, ModelError: there is nothing to cut, or the architecture cannot be; raised
            before anything is computed.
        AccuracyError: it lost more than `max_drop`; nothing is written then.
    """
    _refuse_nothing(config)
    refuse_unwritable(out, parent)
    teacher = Teacher.load(parent, task)
    if config.heads or config.ffn or config.layers:
        refuse_uncuttable(teacher.model)
    whole = load_tokenizer(parent.path)
    answers = _answers(teacher, whole, task, config)
    model = copy.deepcopy(teacher.model)
    tokenizer, readings = _with_fewer_pieces(model, whole, task, config)
    pieces = sorted(tokenizer.get_vocab().items())
    identity = ("prune", config.model_dump(mode="json"), task.fingerprint(), parent.digest, pieces)
    with work_directory(out, *identity) as work:
        examples = token_dataset(task.train, tokenizer, config.max_length, **answers)
        job = _Job(teacher, task, config, tokenizer, examples, work, f"prune {out.name}")
        before = dev_score(teacher.model, whole, task, config.max_length)[task.metric]
        model, dropped = _without_some_layers(model, job)
        model, report, rounds = _in_rounds(model, job)
        _refuse_drop(task.metric, before, rounds[-1]["score"], config)
        write = partial(write_classifier, out, "prune", model, tokenizer, task, config, parent)
        on_main_process(
            lambda: write(report, unpruned=before, **dropped, rounds=rounds, **readings)
        )
    return Artifact.load(out)


def _answers(
    teacher: Teacher, tokenizer: PreTrainedTokenizerBase, task: Task, config: PruneConfig
) -> dict[str, torch.Tensor]:
    """Return what the unpruned model answers to the training texts, where it is learned."""
    if not config.recover:
        return {}
    return teacher_answers(
        teacher.model,
        teacher.artifact.digest,
        token_dataset(task.train, tokenizer, config.max_length),
        {"logits": frozenset()},
        computes_in_bf16(config),
    )


def _with_fewer_pieces(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, config: PruneConfig
) -> tuple[PreTrainedTokenizerBase, dict[str, Any]]:
    """Cut the vocabulary in place; return what reads it, and how that reads held-out texts."""
    if config.vocab is None:
        return tokenizer, {}
    needed = _texts(task.train) if config.vocab == OF_THE_TASK else Corpus(config.vocab)
    pieces = needed_pieces(tokenizer, needed, config.vocab_floor)
    cut_vocabulary(model, pieces)
    readings = {
        name: read(each, _texts(task.dev)).model_dump()
        for name, each in (("before", tokenizer), ("after", pieces.tokenizer))
    }
    return pieces.tokenizer, {"vocabulary": readings}


def _texts(split: Split) -> Iterator[str]:
    return (text for example in split.examples for text in example)


def _without_some_layers(
    model: PreTrainedModel, job: _Job
) -> tuple[PreTrainedModel, dict[str, Any]]:
    if not job.config.layers:
        return model, {}
    stay = least_missed(model, [*_scored_batches(model, job)], job.config.layers)
    return on_device(without_layers(model, stay)), {"layers": stay}


def _in_rounds(
    model: PreTrainedModel, job: _Job
) -> tuple[PreTrainedModel, TrainingReport, list[dict[str, Any]]]:
    """Cut and recover as often as the config says; tell what each round left and scored."""
    config, report = job.config, TrainingReport(steps=0)
    rounds: list[dict[str, Any]] = []
    shares = zip(
        rounds_of(config.heads, config.rounds), rounds_of(config.ffn, config.rounds), strict=True
    )
    for number, (heads, neurons) in enumerate(shares):
        importance: Importance | None = None
        if heads or neurons:
            importance = _measured(model, job)
            model = on_device(cut(model, chosen(importance, heads, neurons, config.across)))
        after_cut = job.score(model)[job.task.metric]
        if config.recover:
            report = _recover(model, job, number)
        rounds.append(
            {
                "heads": heads_of(model.config),
                "neurons": neurons_of(model.config),
                "head_importance": importance and [_rounded(layer) for layer in importance.heads],
                "score_after_cut": after_cut,
                "score": job.score(model)[job.task.metric],
            }
        )
    return model, report, rounds


def _rounded(scores: torch.Tensor) -> list[float]:
    return [round(score, 4) for score in scores.tolist()]


def _measured(model: PreTrainedModel, job: _Job) -> Importance:
    config = job.config
    return importance_of(model, config.importance, _scored_batches(model, job), config.seed)


def _scored_batches(model: PreTrainedModel, job: _Job) -> Iterator[TensorBatch]:
    """Yield some of the training examples, drawn by the seed, in batches of like length."""
    count = min(job.config.scored_texts, len(job.examples))
    generator = torch.Generator().manual_seed(job.config.seed)
    drawn = torch.randperm(len(job.examples), generator=generator)[:count].tolist()
    lengths = [job.examples.lengths[index] for index in drawn]
    buckets = length_buckets(lengths, job.config.tokens_per_batch, job.config.batch_size)
    for bucket in track(buckets, f"{job.description}: score", len(buckets)):
        batch = job.examples.collate([job.examples[drawn[place]] for place in bucket])
        yield {name: tensor.to(model.device) for name, tensor in batch.items()}


def _recover(model: PreTrainedModel, job: _Job, number: int) -> TrainingReport:
    """Train the pruned model in place; an interrupted run goes on in the round it was in."""
    config, teacher = job.config, job.teacher.model
    depth = model.config.num_hidden_layers
    steps = len(planned(job.examples, config))
    trainee = Trainee.of(model, teacher, RECOVERY, seed=config.seed, steps=steps)
    reads = RECOVERY.reads(depth, teacher.config.num_hidden_layers)
    return train(
        trainee,
        job.examples,
        DistillationObjective(teacher, reads, computes_in_bf16(config)),
        config,
        job.work / f"round-{number}",
        description=f"{job.description}: round {number + 1} of {config.rounds}",
        at_epoch_end=lambda each: job.score(each.student),
        keep_end=True,
    )


def _refuse_nothing(config: PruneConfig) -> None:
    if not (config.heads or config.ffn or config.layers or config.vocab):
        raise ConfigError(
            "heads=0, ffn=0, layers=0 and no vocab: there is nothing to prune. Give the share of "
            "the heads or of the neurons to cut, as heads=0.4, how many layers, or vocab=task."
        )


def _refuse_drop(metric: str, before: float, after: float, config: PruneConfig) -> None:
    drop = 100 * (before - after)
    if config.max_drop is not None and drop > config.max_drop:
        raise AccuracyError(
            f"the pruned model lost {drop:.1f} points of {metric} ({before:.3f} to {after:.3f}), "
            f"and max_drop={config.max_drop:g} allows no more. Cut less (heads, ffn), in more "
            "rounds, or recover for more epochs."
        )
