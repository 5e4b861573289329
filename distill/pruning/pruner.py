"""Pruning: the least important parts of a classifier go, and the rest recovers.

torch artifact + task + PruneConfig
  -> pieces of the vocabulary, then layers, then heads and neurons in rounds (`pruning.rounds`)
  -> torch artifact, of the pruned form where its layers are uneven
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, refuse_unwritable
from bertender.core.distributed import on_main_process
from bertender.core.errors import AccuracyError, ConfigError
from bertender.core.findings import (
    Findings,
    PruningFindings,
    ScoreFindings,
    TrainingFindings,
    VocabularyFindings,
)
from bertender.core.work import work_directory
from bertender.models.pruned import heads_of, neurons_of
from bertender.tasks.task import Split, Task
from bertender.text.batch import load_tokenizer
from bertender.training.config import computes_in_bf16
from bertender.training.findings import training_findings
from bertender.training.loop import TrainingReport
from distill.corpora.corpus import Corpus
from distill.data import token_dataset
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.pruning.cutting import refuse_uncuttable
from distill.pruning.latency import HERE, Stopwatches
from distill.pruning.layers import refuse_too_many_layers
from distill.pruning.rounds import Job, in_rounds, without_some_layers
from distill.pruning.target import find_target
from distill.pruning.vocabulary import cut_vocabulary, needed_pieces, read
from distill.scoring import choice_score, dev_score
from distill.teachers.outputs import teacher_answers
from distill.teachers.teacher import Teacher
from distill.writing import write_classifier

__all__ = ["prune"]


def prune(
    parent: Artifact,
    task: Task,
    config: PruneConfig,
    out: Path,
    *,
    stopwatches: Stopwatches = HERE,
) -> Artifact:
    """Cut a classifier's least important parts and write it as a torch artifact.

    `stopwatches` say how long what takes, where the config has a `target_latency`.

    Raises:
        ConfigError, ModelError: there is nothing to cut, or the architecture cannot be; raised
            before anything is trained.
        AccuracyError: it lost more than `max_drop`. Nothing is written then but checkpoints, from
            which the same run with another `max_drop` goes on.
    """
    config.check_rules()
    refuse_unwritable(out, parent)
    teacher = Teacher.load(parent, task)
    _refuse_impossible(teacher.model, config)
    whole, model = load_tokenizer(parent.path), copy.deepcopy(teacher.model)
    tokenizer, vocabulary = _with_fewer_pieces(model, whole, task, config)
    settings = config.model_dump(mode="json", exclude={"max_drop"})
    pieces = sorted(tokenizer.get_vocab().items())
    with work_directory(out, "prune", settings, task.fingerprint(), parent.digest, pieces) as work:
        texts = token_dataset(task.train, tokenizer, config.max_length)
        target = find_target(teacher.model, texts.lengths, config, stopwatches, work)
        examples = texts.with_columns(**_answers(teacher, whole, task, config))
        job = Job(teacher, task, config, tokenizer, examples, work, f"prune {out.name}", target)
        before = choice_score(teacher.model, whole, task, config.max_length)[task.metric]
        model, layers = without_some_layers(model, job)
        model, reports, rounds = in_rounds(model, job)
        _refuse_drop(task.metric, before, rounds[-1].score, config)
        pruning = PruningFindings(
            unpruned=before, rounds=rounds, layers=layers, vocabulary=vocabulary
        )
        training = training_findings({"recovery": _joined(reports)})
        write = partial(write_classifier, out, "prune", model, tokenizer, task, config, parent)
        measured = partial(_findings, whole, model, job, training, pruning, stopwatches)
        on_main_process(lambda: write(measured()))
    return Artifact.load(out)


def _findings(
    whole: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    job: Job,
    training: TrainingFindings,
    pruning: PruningFindings,
    stopwatches: Stopwatches,
) -> Findings:
    """Return what the card says; the pruned model is scored and timed here, once."""
    latency = job.target.reached(model, stopwatches) if job.target else None
    return Findings(
        training=training,
        scores=_held_out(whole, model, job, pruning),
        pruning=pruning.model_copy(update={"latency": latency}),
    )


def _held_out(
    whole: PreTrainedTokenizerBase, model: PreTrainedModel, job: Job, pruning: PruningFindings
) -> ScoreFindings:
    """Return the held-out scores before and after, read once where other texts have chosen."""
    task, length = job.task, job.config.max_length
    before, after = pruning.unpruned, pruning.rounds[-1].score
    if task.chosen_on == "selection":
        before = dev_score(job.teacher.model, whole, task, length)[task.metric]
        after = dev_score(model, job.tokenizer, task, length)[task.metric]
    return ScoreFindings(chosen_on=task.chosen_on, score_before=before, score=after)


def _refuse_impossible(model: PreTrainedModel, config: PruneConfig) -> None:
    """Raise what can be said before anything is computed."""
    if config.cuts_parts or config.layers:
        refuse_uncuttable(model)
        refuse_too_many_layers(model, config.layers)
    shares = {"heads": (config.heads, heads_of), "ffn": (config.ffn, neurons_of)}
    for name, (share, count) in shares.items():
        if share and round(sum(count(model.config)) * share) == 0:
            raise ConfigError(
                f"{name}={share}: that is none of {sum(count(model.config))}. Give a larger share."
            )


def _answers(
    teacher: Teacher, tokenizer: PreTrainedTokenizerBase, task: Task, config: PruneConfig
) -> dict[str, torch.Tensor]:
    """Return what the unpruned model answers to the training texts, where it is learned."""
    if not config.recovers:
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
) -> tuple[PreTrainedTokenizerBase, VocabularyFindings | None]:
    """Cut the vocabulary in place; return what reads it, and how that reads held-out texts.

    The held-out texts choose nothing: which pieces stay, the training texts or a corpus say.
    """
    if config.vocab is None:
        return tokenizer, None
    needed = _texts(task.train) if config.vocab == OF_THE_TASK else Corpus(config.vocab)
    pieces = needed_pieces(tokenizer, needed, config.vocab_floor)
    cut_vocabulary(model, pieces)
    before, after = (read(each, _texts(task.dev)) for each in (tokenizer, pieces.tokenizer))
    return pieces.tokenizer, VocabularyFindings(before=before, after=after)


def _texts(split: Split) -> Iterator[str]:
    return (text for example in split.examples for text in example)


def _joined(reports: Sequence[TrainingReport]) -> TrainingReport:
    """Return the reports of all rounds as one."""
    return TrainingReport(
        steps=sum(report.steps for report in reports),
        losses=[loss for report in reports for loss in report.losses],
        epochs=[scores for report in reports for scores in report.epochs],
    )


def _refuse_drop(metric: str, before: float, after: float, config: PruneConfig) -> None:
    drop = round(100 * (before - after), 6)  # 0.5 points are not more than 0.5
    if config.max_drop is not None and drop > config.max_drop:
        raise AccuracyError(
            f"the pruned model lost {drop:.2f} points of {metric} ({before:.4f} to {after:.4f}), "
            f"and max_drop={config.max_drop:g} allows no more. Cut less, in more rounds, or "
            "recover for more epochs; with another max_drop the same run need not train again."
        )
