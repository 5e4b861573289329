"""Pre-training: a vocabulary and an encoder from plain text, by a row of OBJECTIVES.

passages + PretrainConfig -> vocabulary, model and the objective's rows
  -> `phases.Pretraining.run` -> encoder artifact
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, check_writable
from bertender.core.findings import Findings
from bertender.models.expected import ExpectedModel, without_weights
from bertender.text.batch import load_tokenizer
from bertender.training.examples import Padding
from bertender.training.findings import training_findings
from bertender.training.trained import Writer, trained_artifact
from distill.corpora.corpus import Corpus, Survey, Watched, survey
from distill.corpora.token_store import TokenRow, stored_parts
from distill.objectives import OBJECTIVES, PretrainingObjective
from distill.pretraining.config import PretrainConfig
from distill.pretraining.phases import Pretraining, Rows
from distill.pretraining.stacking import check_stackable, positions_of_shallow, stack
from distill.vocabularies import trained_once
from distill.vocabularies.stand_in import stand_in_tokenizer
from distill.writing import TrainedModel, corpus_record

__all__ = [
    "PretrainConfig",
    "encoder_config",
    "expected_pretrained",
    "pretrain",
    "pretrain_by_name",
]

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
