"""Pruning: cut the least important parts of a classifier, then recover its score by training.

torch artifact + task + PruneConfig
  -> tokens of the vocabulary, then layers, then heads and neurons in rounds (`pruning.rounds`)
  -> torch artifact, in the pruned form where its layers are uneven
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.accuracy import (
    SETTINGS_OF_RUN,
    another_rate,
    check_varied,
    found_constant,
)
from bertender.comparison.calibration import warn_of_training
from bertender.comparison.fitting import evaluated, final_score, unfitted, validated
from bertender.core.artifact import Artifact, check_writable
from bertender.core.build_once import work_directory
from bertender.core.errors import AccuracyError, ConfigError
from bertender.core.findings import (
    Findings,
    PruningFindings,
    ScoreFindings,
    VocabularyFindings,
)
from bertender.core.machine import is_main_process, wait_for_processes
from bertender.models.families import check_positions, family_name
from bertender.models.own_models import PRUNABLE, ExpectedModel, heads_of, neurons_of
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.heads import head_of
from bertender.training.loop import training_findings
from distill.pretraining.corpus import Corpus
from distill.pretraining.vocabulary_cutting import cut_and_read, needed_tokens
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.pruning.cutting import check_layers_apart, check_layers_left, check_prunable
from distill.pruning.latency import HERE, Stopwatches, find_target
from distill.pruning.rounds import (
    PruningContext,
    in_rounds,
    recovery_texts,
    without_some_layers,
)
from distill.teachers.encoders import Teacher
from distill.trained import artifact_at, write_trained

logger = logging.getLogger(__name__)


def prune(
    parent: Artifact,
    task: Task,
    config: PruneConfig,
    out: Path,
    *,
    stopwatches: Stopwatches = HERE,
) -> Artifact:
    """Cut a classifier's least important parts and write it as a torch artifact.

    `stopwatches` time parts of the model, where the config has a `target_latency`.

    Raises:
        ConfigError, ModelError: there is nothing to cut, or the architecture cannot be cut, or the
            teacher predicts other labels; raised before training starts.
        DataError: the file of unlabelled texts is malformed.
        AccuracyError: the pruned model lost more than `max_drop`.
        ConstantError: the recovered model, or the teacher of the recovery, predicts one label
            everywhere. Only checkpoints are written then, from which the same run with another
            `max_drop`, or with `allow_constant`, continues.
    """
    config.check_rules()
    task.require_training("prune")
    check_vocabulary_stays(config, task)
    check_writable(out, parent)
    if config.teacher is not None:
        check_writable(out, artifact_at(str(config.teacher)))
    unpruned = Teacher.load(parent, task)
    check_architecture(unpruned.model, config)
    check_possible(unpruned.model, config)
    texts = recovery_texts(unpruned, task, config)
    if config.recovers:
        texts.teacher.check_varied(task, config)
    whole = _whole_tokenizer(parent, unpruned.model, config)
    fewer_tokens = copy.deepcopy(unpruned.model)
    tokenizer, vocabulary = _with_fewer_tokens(fewer_tokens, whole, texts.task, config)

    identity: list[Any] = [
        texts.task.fingerprint(),
        parent.digest,
        sorted(tokenizer.get_vocab().items()),
    ]
    if texts.teacher is not unpruned:
        identity.append(texts.teacher.digest)
    with work_directory(out, "prune", config.shaping(), *identity) as work:
        target = None
        if config.target_latency is not None:
            target = find_target(unpruned.model, tokenizer, task, config, stopwatches, work)
        context = PruningContext(
            teacher=texts.teacher,
            task=task,
            config=config,
            tokenizer=tokenizer,
            examples=texts.examples(tokenizer),
            work=work,
            description=f"prune {out.name}",
            target=target,
        )
        before = validated(unpruned.model, whole, task)[0].value
        model, layers = without_some_layers(fewer_tokens, context)
        model, recovery, rounds = in_rounds(model, context)
        _check_drop(task.metric, before, rounds[-1].score, config)
        fitted = parent.card.task.fitted
        held_out, is_refitted = before, task.problem.has_thresholds or unfitted(task)
        if is_refitted or task.chosen_on == "selection":  # else `before` is of the held-out texts
            held_out = evaluated(unpruned.model, whole, task, task.dev, fitted)[0].value
        scores = final_score(model, tokenizer, task, score_before=held_out)
        _check_varied(scores, unpruned, whole, task, config)

        if config.recovers:
            warn_of_training(parent, out)

        if is_main_process():
            findings = Findings(
                training=training_findings({"recovery": recovery}, **texts.added()),
                scores=scores,
                pruning=PruningFindings(
                    unpruned=before,
                    rounds=rounds,
                    layers=layers,
                    vocabulary=vocabulary,
                    latency=target.reached(model, stopwatches) if target else None,
                ),
            )
            write_trained(
                model,
                tokenizer,
                replace(task, left_out=texts.task.left_out),
                findings,
                out=out,
                stage="prune",
                config=config,
                parent=parent,
                calibration=None if config.recovers else parent.card.task.calibration,
            )
        wait_for_processes()
    return Artifact.load(out)


def _whole_tokenizer(
    parent: Artifact, model: PreTrainedModel, config: PruneConfig
) -> PreTrainedTokenizerBase:
    """Return the unpruned model's tokenizer, with the config's longest input, if any.

    Raises:
        ConfigError: the model has too few positions for the longest input or the timed length.
    """
    if config.max_length is not None:
        check_positions(config.max_length, model.config)
    tokenizer = load_tokenizer(parent.path, config.max_length)
    longest = longest_input(tokenizer)
    if config.latency_tokens is not None and config.latency_tokens > longest:
        raise ConfigError(
            f"latency_tokens={config.latency_tokens}: the model reads {longest} tokens of a text. "
            "Give so many at most, or a larger max_length."
        )
    return tokenizer


def _with_fewer_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, config: PruneConfig
) -> tuple[PreTrainedTokenizerBase, VocabularyFindings | None]:
    """Cut the vocabulary in place; return the new tokenizer, and how it reads held-out texts.

    The remaining tokens are chosen by the training texts, with unlabelled ones, or by a corpus;
    never by the held-out texts.
    """
    if config.vocab is None:
        return tokenizer, None
    needed = task.train.texts() if config.vocab == OF_THE_TASK else Corpus(config.vocab)
    tokens = needed_tokens(tokenizer, needed, config.vocab_floor, config.vocab_size)
    return tokens.tokenizer, cut_and_read(model, tokenizer, tokens, task.dev.texts())


def _check_drop(metric: str, before: float, after: float, config: PruneConfig) -> None:
    drop = round(100 * (before - after), 6)  # 0.5 points are not more than 0.5
    if config.max_drop is not None and drop > config.max_drop:
        raise AccuracyError(
            f"the pruned model lost {drop:.2f} points of {metric} ({before:.4f} to {after:.4f}), "
            f"and max_drop={config.max_drop:g} allows no more. Cut less, in more rounds, or "
            "recover for more epochs; with another max_drop the same run need not train again."
        )


def _check_varied(
    scores: ScoreFindings,
    unpruned: Teacher,
    whole: PreTrainedTokenizerBase,
    task: Task,
    config: PruneConfig,
) -> None:
    """Raise ConstantError for a model that predicts one label; only warn without recovery.

    Without recovery, a later stage may train the pruned model and still recover it.
    """
    if scores.constant is None or config.allow_constant:
        return
    if config.recovers:
        advice = f"to cut less, in more rounds; more epochs; or {another_rate(config)}"
    else:
        advice = "to cut less, or a recovery"
        choices = task.choices  # the held-out texts serve for the scores alone
        _, predictions = evaluated(unpruned.model, whole, task, choices)
        if found_constant(task, choices, predictions):
            advice = "another model to prune: this one predicts one label before it is cut, too"
    if config.recover:
        cuts = filter(config.is_explicit, ("heads", "ffn", "layers", "target_latency", "vocab"))
        settings = (*cuts, *(SETTINGS_OF_RUN if config.recovers else ()))
        check_varied(scores, task, config, settings, advice)
        return
    logger.warning(
        "task %s: on the held-out texts, the pruned model %s, and nothing has trained it since "
        "the cut (recover=False). If no later stage trains it, try %s",
        task.name,
        scores.constant.words,
        advice,
    )


def check_architecture(model: PreTrainedModel, config: PruneConfig) -> None:
    """Raise ModelError where the config cuts layers of an architecture that cannot be cut."""
    if config.cuts_parts:
        check_prunable(model)
    if config.layers:
        check_layers_apart(model)


def check_possible(model: PreTrainedModel, config: PruneConfig) -> None:
    """Raise where a model has too few layers, heads or neurons for the cut.

    Raises:
        ModelError: no layer would be left.
        ConfigError: no head or no neuron would be cut.
    """
    if config.cuts_parts or config.layers:
        check_layers_left(model, config.layers)
    shares = {"heads": (config.heads, heads_of), "ffn": (config.ffn, neurons_of)}
    for name, (share, count) in shares.items():
        if share and round(sum(count(model.config)) * share) == 0:
            raise ConfigError(
                f"{name}={share}: 0 of {sum(count(model.config))} would be cut. Give a larger one."
            )


def check_vocabulary_stays(config: PruneConfig, task: Task) -> None:
    """Raise ConfigError where the vocabulary of a model of tags or answers would be cut."""
    if config.vocab is not None and head_of(task.problem).per_token:
        raise ConfigError(
            f"vocab={config.vocab!r}: tags and answers are learned token by token, so that all "
            f"tokens stay, and task {task.name!r} is one of {task.problem_type!r}. Leave it "
            "out, and cut heads, ffn or layers."
        )


def expected_pruned(config: PruneConfig, source: ExpectedModel | None) -> ExpectedModel | None:
    """Return the expected pruned model, as far as it is known before any texts are read."""
    if source is None or not (config.cuts_parts or config.layers):
        return source
    if not config.cuts_parts:  # the dropped layers decide the shape of the pruned model
        return replace(source, shape_known=False)
    origin = family_name(source.model.config)
    # removed heads always need the pruned form; neurons may be cut equally in all layers
    return ExpectedModel.of_type(PRUNABLE[origin].config.model_type if config.heads else origin)
