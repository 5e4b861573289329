"""Pruning: the least important parts of a classifier go, and the rest recovers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.accuracy import (
    SETTINGS_OF_RUN,
    another_rate,
    check_varied,
    found_constant,
)
from bertender.core.artifact import Artifact, check_writable
from bertender.core.errors import AccuracyError, ConfigError
from bertender.core.findings import Findings, PruningFindings, ScoreFindings, VocabularyFindings
from bertender.models.families import check_positions, family_name
from bertender.models.own_models import PRUNABLE, ExpectedModel, heads_of, neurons_of
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.heads import HEADS
from bertender.training.loop import TrainingReport, Writer, trained_artifact, training_findings
from distill.pretraining.corpus import Corpus
from distill.pretraining.vocabulary_cutting import cut_and_read, needed_tokens
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.pruning.cutting import check_layers_left, check_prunable
from distill.pruning.latency import HERE, Stopwatches, find_target
from distill.pruning.rounds import (
    PruningContext,
    RecoveryTexts,
    check_unlabelled_read,
    in_rounds,
    recovery_texts,
    without_some_layers,
)
from distill.teachers.teacher import Teacher
from distill.trained import (
    TrainedModel,
    artifact_at,
    check_teacher,
    choice_score,
    dev_score,
    evaluated,
    final_score,
)

# --- from distill.pruning.pruner
# Pruning: the least important parts of a classifier go, and the rest recovers.
#
# torch artifact + task + PruneConfig
#   -> tokens of the vocabulary, then layers, then heads and neurons in rounds (`pruning.rounds`)
#   -> torch artifact, of the pruned form where its layers are uneven

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
        ConfigError, ModelError: there is nothing to cut, or the architecture cannot be, or the
            teacher predicts other labels; raised before anything is trained.
        DataError: the file of unlabelled texts is wrong.
        AccuracyError: it lost more than `max_drop`.
        ConstantError: it predicts one label everywhere, though it was to recover; or the teacher
            that it recovers with does. Nothing is written then but checkpoints, from which the
            same run with another `max_drop`, or with `allow_constant`, continues.
    """
    config.check_rules()
    task.require_training("prune")
    check_vocabulary_stays(config, task)
    check_unlabelled_read(task, config)
    check_writable(out, parent)
    if config.teacher is not None:
        check_writable(out, artifact_at(str(config.teacher)))
    ready = _ready(parent, task, config, stopwatches)
    train = partial(ready.prune, f"prune {out.name}")
    return trained_artifact(out, "prune", config, train, identity=ready.identity, parent=parent)


@dataclass(frozen=True)
class _Ready:
    """A classifier to prune, loaded and checked."""

    unpruned: Teacher
    whole: PreTrainedTokenizerBase
    """Its tokenizer."""
    model: PreTrainedModel
    """The one to cut; tokens of its vocabulary that are not needed are removed already."""
    tokenizer: PreTrainedTokenizerBase
    vocabulary: VocabularyFindings | None
    """How both tokenizers read held-out texts, where they differ."""
    task: Task
    config: PruneConfig
    stopwatches: Stopwatches
    recovery: RecoveryTexts
    """The texts that the recovery learns from, and its teacher."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Inputs of the run besides the settings."""
        tokens = sorted(self.tokenizer.get_vocab().items())
        return (
            self.recovery.task.fingerprint(),
            self.unpruned.artifact.digest,
            tokens,
            *self.recovery.other_teacher(self.unpruned),
        )

    def prune(self, description: str, work: Path) -> Writer:
        """Cut layers, heads and neurons, and recover; return what writes the rest.

        Raises:
            AccuracyError: it lost more than `max_drop`.
            ConstantError: it predicts one label everywhere, though it was to recover.
        """
        task, context = self.task, self._context(description, work)
        before = choice_score(self.unpruned.model, self.whole, task)[task.metric]
        model, layers = without_some_layers(self.model, context)
        model, reports, rounds = in_rounds(model, context)
        _check_drop(task.metric, before, rounds[-1].score, self.config)
        pruning = PruningFindings(
            unpruned=before, rounds=rounds, layers=layers, vocabulary=self.vocabulary
        )
        scores = _held_out(self.whole, model, context, pruning)
        self._check_varied(scores)

        def write(**artifact_settings: Any) -> None:
            findings = self._findings(model, context, _joined(reports), pruning, scores)
            record = replace(task, left_out=self.recovery.task.left_out)
            trained = TrainedModel.classifier(model, self.tokenizer, record, findings)
            trained.write(**artifact_settings)

        return write

    def _check_varied(self, scores: ScoreFindings) -> None:
        """Raise ConstantError for a model of one label; only warn where no recovery was wanted.

        Without recovery, a later stage is to train what was cut, and may well recover it.
        """
        config, task = self.config, self.task
        if scores.constant is None or config.allow_constant:
            return
        if config.recover:
            check_varied(scores, task, config, _settings_of(config), self._advice())
            return
        logger.warning(
            "task %s: on the held-out texts, the pruned model %s, and nothing has trained it since "
            "the cut (recover=False). If no later stage trains it, try %s",
            task.name,
            scores.constant.words,
            self._advice(),
        )

    def _advice(self) -> str:
        """Return what to try where the pruned model predicts one label."""
        config = self.config
        if config.recovers:
            return f"to cut less, in more rounds; more epochs; or {another_rate(config)}"
        choices = self.task.choices  # the held-out texts are read for the scores alone
        _, predictions = evaluated(self.unpruned.model, self.whole, self.task, choices)
        if found_constant(self.task, choices, predictions):
            return "another model to prune: this one predicts one label before it is cut, too"
        return "to cut less, or a recovery"

    def _findings(
        self,
        model: PreTrainedModel,
        context: PruningContext,
        report: TrainingReport,
        pruning: PruningFindings,
        scores: ScoreFindings,
    ) -> Findings:
        """Return the card's findings; the pruned model is timed here, once."""
        latency = context.target.reached(model, self.stopwatches) if context.target else None
        return Findings(
            training=training_findings({"recovery": report}, **self.recovery.added()),
            scores=scores,
            pruning=pruning.model_copy(update={"latency": latency}),
        )

    def _context(self, description: str, work: Path) -> PruningContext:
        """Return what all rounds share; the teacher reads the texts where it is learned from."""
        unpruned, config, texts = self.unpruned, self.config, self.recovery
        lengths = texts.tokenised(self.tokenizer, self.task).lengths
        target = find_target(unpruned.model, lengths, config, self.stopwatches, work)
        examples = texts.examples(self.tokenizer)
        return PruningContext(
            unpruned=unpruned,
            teacher=texts.teacher,
            task=self.task,
            config=config,
            tokenizer=self.tokenizer,
            examples=examples,
            work=work,
            description=description,
            target=target,
        )


def _ready(parent: Artifact, task: Task, config: PruneConfig, stopwatches: Stopwatches) -> _Ready:
    """Load a classifier and check that the config can cut it; cut its vocabulary."""
    unpruned = Teacher.load(parent, task)
    check_architecture(unpruned.model, config)
    check_possible(unpruned.model, config)
    recovery = recovery_texts(unpruned, task, config)
    if config.recovers:
        check_teacher(recovery.teacher, task, config)
    whole, model = _tokenizer(parent, unpruned.model, config), copy.deepcopy(unpruned.model)
    tokenizer, vocabulary = _with_fewer_tokens(model, whole, recovery.task, config)
    return _Ready(
        unpruned, whole, model, tokenizer, vocabulary, task, config, stopwatches, recovery
    )


def _tokenizer(
    parent: Artifact, model: PreTrainedModel, config: PruneConfig
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the model to prune, with the longest input of the config, if any.

    Raises:
        ConfigError: the model has fewer positions, or reads shorter texts than are to be timed.
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


def _held_out(
    whole: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    context: PruningContext,
    pruning: PruningFindings,
) -> ScoreFindings:
    """Return the held-out scores before and after, read once where other texts have chosen."""
    task = context.task
    before = pruning.unpruned
    if task.chosen_on == "selection":
        before = dev_score(context.unpruned.model, whole, task)[task.metric]
    return final_score(model, context.tokenizer, task, score_before=before)


def _settings_of(config: PruneConfig) -> tuple[str, ...]:
    """Return the settings that an error of a model which predicts one label names."""
    cuts = ("heads", "ffn", "layers", "target_latency", "vocab")
    return (*filter(config.is_explicit, cuts), *(SETTINGS_OF_RUN if config.recovers else ()))


def check_architecture(model: PreTrainedModel, config: PruneConfig) -> None:
    """Raise ModelError where layers are to be cut of an architecture whose layers cannot be."""
    if config.cuts_parts or config.layers:
        check_prunable(model)


def check_possible(model: PreTrainedModel, config: PruneConfig) -> None:
    """Raise where a model has not so many layers, heads or neurons that some can be cut.

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
    """Raise ConfigError where a tagger's words would be cut into other tokens than they were."""
    if config.vocab is not None and HEADS[task.problem_type].per_token:
        raise ConfigError(
            f"vocab={config.vocab!r}: a model that labels words learns token by token, so that "
            f"its tokens stay, and task {task.name!r} is one of {task.problem_type!r}. Leave it "
            "out, and cut heads, ffn or layers."
        )


def _with_fewer_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, config: PruneConfig
) -> tuple[PreTrainedTokenizerBase, VocabularyFindings | None]:
    """Cut the vocabulary in place; return what reads it, and how that reads held-out texts.

    The held-out texts choose nothing: the training texts, those without labels too, or a corpus
    choose the tokens that stay.
    """
    if config.vocab is None:
        return tokenizer, None
    needed = _texts(task.train) if config.vocab == OF_THE_TASK else Corpus(config.vocab)
    tokens = needed_tokens(tokenizer, needed, config.vocab_floor, config.vocab_size)
    return tokens.tokenizer, cut_and_read(model, tokenizer, tokens, _texts(task.dev))


def _texts(split: Split) -> Iterator[str]:
    return (text for example in split.examples for text in example)


def _joined(reports: Sequence[TrainingReport]) -> TrainingReport:
    """Return the reports of all rounds as one."""
    return TrainingReport(
        steps=sum(report.steps for report in reports),
        losses=[loss for report in reports for loss in report.losses],
        epochs=[scores for report in reports for scores in report.epochs],
    )


def _check_drop(metric: str, before: float, after: float, config: PruneConfig) -> None:
    drop = round(100 * (before - after), 6)  # 0.5 points are not more than 0.5
    if config.max_drop is not None and drop > config.max_drop:
        raise AccuracyError(
            f"the pruned model lost {drop:.2f} points of {metric} ({before:.4f} to {after:.4f}), "
            f"and max_drop={config.max_drop:g} allows no more. Cut less, in more rounds, or "
            "recover for more epochs; with another max_drop the same run need not train again."
        )


# --- from distill.pruning.expected
# The model that a pruning leaves, before any importance is measured.


def expected_pruned(config: PruneConfig, source: ExpectedModel | None) -> ExpectedModel | None:
    """Return what is left of a model, as far as it is known before any texts are read."""
    if source is None or not (config.cuts_parts or config.layers):
        return source
    if not config.cuts_parts:  # which layers go decides how deep and how even the rest is
        return replace(source, shape_known=False)
    origin = family_name(source.model.config)
    # a head that is gone makes a layer unlike the config; neurons may go in equal numbers
    return ExpectedModel.of_type(PRUNABLE[origin].config.model_type if config.heads else origin)
