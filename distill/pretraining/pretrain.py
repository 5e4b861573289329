"""Pre-training: a vocabulary and an encoder from plain text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, BertConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

from bertender.core.artifact import Artifact, check_writable
from bertender.core.build_once import in_order
from bertender.core.errors import ConfigError
from bertender.core.findings import Findings
from bertender.core.hub_code import open_pretrained
from bertender.models.families import family_of
from bertender.models.own_models import ExpectedModel, without_weights
from bertender.text.tokenizer import load_tokenizer
from bertender.training.examples import Padding, TokenDataset
from bertender.training.loop import (
    Objective,
    TrainingReport,
    Writer,
    planned,
    train,
    trained_artifact,
    training_findings,
)
from distill.pretraining.config import (
    OBJECTIVES,
    PretrainConfig,
    PretrainingObjective,
    trained_once,
)
from distill.pretraining.corpus import Corpus, Survey, Watched, survey
from distill.pretraining.objectives import PretrainingModule
from distill.pretraining.rows import TokenRow, held_out_loss, stored_parts
from distill.pretraining.vocabularies import stand_in_tokenizer
from distill.trained import TrainedModel, corpus_record

# --- from distill.pretraining.phases
# Training on rows of one length, or on short ones first and long ones at the end.
#
# BERT trains on rows of 128 tokens for nine tenths of the steps and on 512 for the rest, to learn
# the later positions (Devlin et al. 2018, arXiv 1810.04805, appendix A.2). The steps of the run
# are
# those that the passes of the config take over short rows.
# Departure: each phase has an optimizer and a schedule of its own, and batches that hold as many
# tokens, not as many rows, where `tokens_per_batch` is what bounds them.


@dataclass(frozen=True)
class Rows:
    """Rows of one length."""

    training: TokenDataset
    held_out: TokenDataset


@dataclass(frozen=True)
class Pretraining:
    """The model to pre-train, its rows, and how it is measured."""

    module: PretrainingModule
    """It is trained in place."""
    objective: Objective
    rows_of_length: Callable[[int], Rows]
    """most tokens of a row -> rows"""
    perplexity_of: str | None
    """The part of the held-out loss to give the perplexity of."""

    def run(
        self, config: PretrainConfig, work: Path, description: str
    ) -> dict[str, TrainingReport]:
        """Train through the phases of a config in turn; return a report of each.

        An interrupted run continues in the phase it was in: the end of an earlier one is saved as a
        checkpoint too.

        Args:
            config: how long and fast, and at which lengths.
            work: directory of the checkpoints.
            description: text of the progress bar.
        """
        reports: dict[str, TrainingReport] = {}
        for phase, folder, is_last in in_order(config.phases(), work):
            rows = self.rows_of_length(phase.max_length)
            if not reports:
                whole = len(planned(rows.training, config))
            left = whole - sum(report.steps for report in reports.values())
            steps = max(1, left if is_last else round(phase.share * whole))
            reports[phase.name] = train(
                self.module,
                rows.training,
                self.objective,
                _long_enough(config, rows.training, steps),
                folder,
                description=description if is_last else f"{description}: {phase.name}",
                at_epoch_end=partial(
                    held_out_loss,
                    objective=self.objective,
                    examples=rows.held_out,
                    perplexity_of=self.perplexity_of,
                ),
                steps=steps,
            )
        return reports


def _long_enough(config: PretrainConfig, examples: TokenDataset, steps: int) -> PretrainConfig:
    """Return the config with the number of epochs that some steps take."""
    epoch = len(planned(examples, config.model_copy(update={"epochs": 1})))
    epochs = max(config.epochs, math.ceil(steps / epoch) + 1)  # one may be a batch shorter
    return config.model_copy(update={"epochs": epochs})


# --- from distill.pretraining.stacking
# Progressive stacking (Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking").
#
# A deeper encoder starts from a shallower one that is pre-trained already: its layer i is layer
# i mod L of the L shallow ones (algorithm 1 doubles; other depths repeat as far as they go).
# Embeddings and the head are taken over, and the vocabulary with them. Heads that only the
# training
# needs start untrained.

MUST_AGREE = ("tokenizer", "vocabulary_size", "hidden_size", "heads")
"""Fields of PretrainConfig that a deeper encoder shares with the shallower one."""


def check_stackable(shallow: Artifact, config: PretrainConfig, family: str) -> None:
    """Raise ConfigError where an encoder of `config` cannot grow from `shallow`."""
    name = f"stack_from={str(shallow.path)!r}"
    if shallow.card.stage != "pretrain":
        raise ConfigError(
            f"{name} is an artifact of stage {shallow.card.stage!r}. Give one of `pretrain`."
        )
    check_same_shape(name, shallow.card.family, shallow.card.config, config, family)
    if config.max_length > (positions := positions_of_shallow(shallow)):
        raise ConfigError(
            f"max_length={config.max_length}: {name} has positions for {positions} tokens only. "
            f"Give at most so many."
        )


def check_same_shape(
    name: str, shallow_family: str, shallow: Mapping[str, Any], config: PretrainConfig, family: str
) -> None:
    """Raise ConfigError where an encoder of `config` cannot grow from one of the settings
    `shallow`."""
    if shallow_family != family:
        raise ConfigError(
            f"{name} is of family {shallow_family!r}, and objective {config.objective!r} "
            f"trains one of {family!r}. Choose an objective of its own family."
        )
    for field in MUST_AGREE:
        # a card may be older than a field, which then had its default of today
        default = type(config).model_fields[field].default
        own, theirs = getattr(config, field), shallow.get(field, default)
        if own != theirs:
            raise ConfigError(
                f"{field}={own}: {name} has {field}={theirs}, and only depth can grow. "
                f"Give {field}={theirs}."
            )
    if config.layers <= (layers := shallow["layers"]):
        raise ConfigError(
            f"layers={config.layers}: {name} has {layers} already. Give more; twice is usual."
        )


def positions_of_shallow(shallow: Artifact) -> int:
    """Return how many tokens the shallower encoder has positions for."""
    config = open_pretrained(AutoConfig, shallow.path, local_files_only=True)
    return int(config.max_position_embeddings)


def stack(model: PreTrainedModel, shallow: Artifact) -> None:
    """Copy a shallower encoder's weights into `model`, its layers as often as they fit."""
    weights = load_file(shallow.path / SAFE_WEIGHTS_NAME)
    prefix = f"{model.base_model_prefix}.{family_of(model).layers}."
    depth = int(shallow.card.config["layers"])
    sources = {key: _source(key, prefix, depth) for key in model.state_dict()}
    # what is tied is in the file once; a pooler is where the shallower one's objective had it
    model.load_state_dict(
        {key: weights[source] for key, source in sources.items() if source in weights}, strict=False
    )


def _source(key: str, prefix: str, depth: int) -> str:
    """Return the shallower encoder's name of a weight."""
    if not key.startswith(prefix):
        return key
    layer, _, rest = key.removeprefix(prefix).partition(".")
    return f"{prefix}{int(layer) % depth}.{rest}"


# --- from distill.pretraining.pretrain
# Pre-training: a vocabulary and an encoder from plain text, by a row of OBJECTIVES.
#
# passages + PretrainConfig -> vocabulary, model and the objective's rows
#   -> `phases.Pretraining.run` -> encoder artifact

FEWEST_POSITIONS = 128


def pretrain_by_name(config: PretrainConfig, out: Path) -> Artifact:
    """`pretrain` on the corpus that `config.corpus` names, as it is read."""
    return pretrain(Corpus(config.corpus, config.text_column), config, out)


def pretrain(passages: Iterable[str], config: PretrainConfig, out: Path) -> Artifact:
    """Train a vocabulary and an encoder on passages; write a torch artifact.

    The artifact is a teacher's start (`finetune --teacher`), not a classifier. One passage in
    fifty is held out (of objectives on pairs, one run of passages); the loss on them, its parts
    and the perplexity are measured after each epoch. No more than some passages is in memory at
    a time: the tokens go to disk, and are read from there.

    Args:
        passages: iterated over several times, so not an iterator; an empty one ends a document.
        config: what to train, and how.
        out: directory of the artifact.

    Raises:
        ConfigError: the objective or the tokenizer is unknown, the vocabulary is too small for
            it, the heads do not divide the width, or the encoder cannot grow from
            `config.stack_from`.
        DataError: there are too few passages to train and hold out.
    """
    chosen = OBJECTIVES[config.objective]
    config.check_rules()
    surveyed = survey(passages)
    surveyed.check_enough()
    shallow = Artifact.load(config.stack_from) if config.stack_from else None
    check_writable(out, shallow)
    if shallow:
        check_stackable(shallow, config, chosen.family)

    def trained(work: Path) -> Writer:
        watched = Watched(passages, surveyed, "train the vocabulary")
        tokenizer = _tokenizer(watched, config, shallow, work / "vocabulary")
        torch.manual_seed(config.seed)
        corpus = _CorpusRows(passages, surveyed, chosen, tokenizer, config.seed)
        pretraining = Pretraining(
            chosen.pretraining_module(_model(chosen, config, tokenizer, shallow)),
            chosen.objective(tokenizer, config.mask_probability, config.seed),
            partial(corpus.of_length, work=work),
            chosen.perplexity_of,
        )
        reports = pretraining.run(config, work, f"pre-train {out.name}")
        metric = "perplexity" if chosen.perplexity_of else "loss"
        record = corpus_record(config.corpus, config.text_column, metric, chosen.problem_type)
        findings = Findings(training=training_findings(reports))
        return TrainedModel(pretraining.module.finished(), tokenizer, record, findings).write

    identity = (surveyed.sha256, shallow and shallow.digest)
    return trained_artifact(out, "pretrain", config, trained, identity=identity, parent=shallow)


def encoder_config(
    config: PretrainConfig, tokenizer: PreTrainedTokenizerBase, positions: int | None = None
) -> BertConfig:
    """Return the shape of the encoder; the feed-forward part is four times the width, as BERT's.

    Args:
        config: the sizes.
        tokenizer: the vocabulary.
        positions: most tokens of an input; by default those of the longest row, and 128 at least.
    """
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.hidden_size,
        max_position_embeddings=positions or max(config.max_length, FEWEST_POSITIONS),
        pad_token_id=tokenizer.pad_token_id,
    )


def expected_pretrained(config: PretrainConfig) -> ExpectedModel | None:
    """Return the encoder of a config, without weights."""
    shape = encoder_config(config, stand_in_tokenizer())
    model = without_weights(lambda: OBJECTIVES[config.objective].model(shape))
    return None if model is None else ExpectedModel.of(model.config)


def _tokenizer(
    passages: Iterable[str], config: PretrainConfig, shallow: Artifact | None, directory: Path
) -> PreTrainedTokenizerBase:
    """Return the vocabulary of the encoder to grow from, or one that is trained once."""
    if shallow is None:
        sizes = config.vocabulary_size, config.max_length
        return trained_once(config.tokenizer, passages, *sizes, directory)
    tokenizer = load_tokenizer(shallow.path)
    tokenizer.model_max_length = config.max_length
    return tokenizer


def _model(
    chosen: PretrainingObjective,
    config: PretrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    shallow: Artifact | None,
) -> PreTrainedModel:
    """Build the model that the objective keeps, untrained or grown from a shallower one."""
    if shallow is None:
        return chosen.model(encoder_config(config, tokenizer))
    model = chosen.model(encoder_config(config, tokenizer, positions_of_shallow(shallow)))
    stack(model, shallow)
    return model


@dataclass(frozen=True)
class _CorpusRows:
    """A corpus as the objective reads it, with the run's vocabulary."""

    passages: Iterable[str]
    surveyed: Survey
    objective: PretrainingObjective
    tokenizer: PreTrainedTokenizerBase
    seed: int

    def of_length(self, max_length: int, work: Path) -> Rows:
        """Make the rows of one length below `work`, to train on and held out."""

        def rows(part: Iterable[str]) -> Iterator[TokenRow]:
            return self.objective.rows(part, self.tokenizer, max_length, self.seed)

        directory, run = work / f"rows-{max_length}", self.objective.held_out_run
        padding = Padding.of(self.tokenizer)
        return Rows(*stored_parts(self.passages, self.surveyed, rows, directory, padding, run))
