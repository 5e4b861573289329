"""Pre-training by a row of OBJECTIVES: a vocabulary and an encoder from plain text, or further
training of an existing encoder (Gururangan et al. 2020, arXiv 2004.10964).

passages + PretrainConfig -> vocabulary, model and rows -> training, in phases of a row length ->
encoder artifact
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, BertConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

from bertender.core.artifact import Artifact, check_writable
from bertender.core.build_once import in_order, work_directory
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.findings import Findings, LanguageShare
from bertender.core.hub import open_pretrained
from bertender.core.machine import is_main_process, wait_for_processes
from bertender.models.families import check_positions, family_of, padding_embedding
from bertender.models.own_models import OWN_MODELS, ExpectedModel, without_weights
from bertender.text.batch import is_blank
from bertender.text.tokenizer import load_tokenizer, longest_input, padding_of
from bertender.training.checkpoint import start_digest
from bertender.training.examples import TokenDataset
from bertender.training.loop import TrainingReport, planned, train, training_findings
from bertender.training.steps import Objective
from distill.pretraining.config import (
    DOC_SENTENCES,
    FULL_SENTENCES,
    OBJECTIVES,
    WORDPIECE,
    PretrainConfig,
)
from distill.pretraining.corpus import Corpus
from distill.pretraining.languages import (
    Language,
    joined,
    languages_of,
    sampled_passages,
    sampled_rows,
)
from distill.pretraining.masking import PhraseSpans
from distill.pretraining.objectives import (
    MaskedLanguageModel,
    MaskedPhrases,
    MaskedSpans,
    MaskedTokens,
    MaskedWholeWords,
    PretrainingModule,
    ShuffledWords,
    held_out_loss,
)
from distill.pretraining.replaced_tokens import DisentangledTokensModule, ReplacedTokensModule
from distill.pretraining.rows import CONSECUTIVE_PASSAGES, stored_parts
from distill.pretraining.sampling import Resegmented, segmenter_of
from distill.pretraining.segment_pairs import NextSentence, SentenceOrder, StructuredPairs
from distill.pretraining.vocabularies import stand_in_tokenizer, trained_once
from distill.teachers.encoders import find_encoder, load_reader_of_words
from distill.trained import artifact_at, corpus_record, write_trained

TRAINING_MODULES: Mapping[str, type[PretrainingModule]] = {
    "mlm": MaskedTokens,
    "mlm+nsp": NextSentence,
    "mlm+sop": SentenceOrder,
    "mlm+structure": StructuredPairs,
    "mlm+word-order": ShuffledWords,
    "phrase": MaskedPhrases,
    "rtd": ReplacedTokensModule,
    "rtd-gdes": DisentangledTokensModule,
    "span": MaskedSpans,
    "wwm": MaskedWholeWords,
}
"""Training module of each row of OBJECTIVES."""

logger = logging.getLogger(__name__)

FEWEST_POSITIONS = 128
OF_LABELS = (
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
)
"""Suffixes of the names of classes that predict labels."""
MUST_AGREE = ("tokenizer", "vocabulary_size", "hidden_size", "heads")
"""Fields of PretrainConfig that stacked encoders share."""


def pretrain_by_name(config: PretrainConfig, out: Path) -> Artifact:
    """Call `pretrain` on the corpus of `config.corpus`."""
    return pretrain(Corpus(config.corpus, config.text_column), config, out)


def pretrain(passages: Iterable[str], config: PretrainConfig, out: Path) -> Artifact:
    """Train a vocabulary and an encoder on passages; write a torch artifact.

    The artifact is an encoder for `finetune --teacher`, not a classifier. One passage in fifty is
    held out (for objectives on pairs, one run of passages); the held-out loss, its parts and the
    perplexity are measured after each epoch. Only some passages are in memory at a time: tokens are
    stored on disk.

    Args:
        passages: iterated over several times, so not an iterator; an empty passage ends a document.
        config: settings of the stage.
        out: directory of the artifact.

    Raises:
        ConfigError: the objective or the tokenizer is unknown, the vocabulary is too small for it,
            the heads do not divide the width, the encoder cannot grow from `config.stack_from`, or
            `config.encoder` has too few positions.
        ModelError: `config.encoder` cannot be read, or its tokenizer cannot mask tokens.
        ArtifactError: writing to `out` would overwrite other work, or the encoder itself.
        HubUnreachableError: `config.encoder` is not on this machine, and no hub responds.
        DataError: there are too few passages to train and hold out.
    """
    row, kind = OBJECTIVES[config.objective], TRAINING_MODULES[config.objective]
    config.check_rules()
    config = config.of_encoder()
    alpha = config.language_alpha
    source = find_encoder(config.encoder, setting="encoder") if config.encoder else None
    shallow = Artifact.load(config.stack_from) if config.stack_from else None
    parent = artifact_at(source) if source else shallow
    check_writable(out, parent)
    languages = languages_of(passages, config)
    warn_of_single_document(languages, config)
    if shallow:
        check_stackable(shallow, config, row.family)

    start = start_from(source, config) if source else None
    known = start_digest(*start) if start else shallow and shallow.digest
    phrases = read_phrases(config.phrases) if config.phrases else ()
    identity = (*(each.surveyed.sha256 for each in languages), known, *phrases)
    with work_directory(out, "pretrain", config.shaping(), *identity) as work:
        if start:
            model, tokenizer = start
            config = with_shape_of(model, config)
        elif shallow is None:
            sizes = config.vocabulary_size, config.max_length
            name, text = config.tokenizer or WORDPIECE, sampled_passages(languages, alpha)
            tokenizer = trained_once(name, text, *sizes, work / "vocabulary")
        else:
            tokenizer = load_tokenizer(shallow.path)
            tokenizer.model_max_length = config.max_length
        torch.manual_seed(config.seed)
        if start is None:
            positions = positions_of_shallow(shallow) if shallow else None
            model = kind.untrained(encoder_config(config, tokenizer, positions))
        if shallow:
            stack(model, shallow)
        module = kind(model)
        spans = PhraseSpans(tokenizer, phrases) if phrases else None
        shares: list[LanguageShare] = []

        def stored_rows(max_length: int) -> tuple[TokenDataset, TokenDataset]:
            """Return the training and held-out rows of one length."""
            parts = [
                stored_parts(
                    each.passages,
                    each.surveyed,
                    lambda part: kind.rows(
                        part, tokenizer, max_length, config.seed, config.packing
                    ),
                    work / f"rows-{max_length}" / str(number),
                    padding_of(tokenizer),
                    run=CONSECUTIVE_PASSAGES,
                )
                for number, each in enumerate(languages)
            ]
            names = [each.name for each in languages]
            rows, shares[:] = sampled_rows([training for training, _ in parts], names, alpha)
            held_out = joined([held_out for _, held_out in parts])
            if spans:
                check_occurring(spans, rows, phrases, config)
            return rows, held_out

        reports = train_in_phases(
            module,
            objective_of(kind, tokenizer, config, spans),
            stored_rows,
            row.perplexity_of,
            config,
            work,
            f"pre-train {out.name}",
        )
        metric = "perplexity" if row.perplexity_of else "loss"
        record = corpus_record(config.corpus, config.text_column, metric, row.problem_type)
        findings = Findings(
            training=training_findings(reports), languages=tuple(shares) if shares else None
        )
        model = module.finished()
        if (padding := padding_embedding(model)) is not None:
            padding.zero_()  # training has changed it, and a text's last token may read it
        if is_main_process():
            written: dict[str, Any] = {"stage": "pretrain", "config": config, "parent": parent}
            write_trained(model, tokenizer, record, findings, out=out, **written)
        wait_for_processes()
    return Artifact.load(out)


def warn_of_single_document(languages: Sequence[Language], config: PretrainConfig) -> None:
    """Log a warning where rows shall end with documents, and the corpus is one document."""
    documents = sum(each.surveyed.documents for each in languages)
    if config.packing == DOC_SENTENCES and documents < 2:
        logger.warning(
            "packing=%s: the corpus is one document, so that rows equal those of %s. Put an empty "
            "line after each document of a text file",
            DOC_SENTENCES,
            FULL_SENTENCES,
        )


def objective_of(
    kind: type[PretrainingModule],
    tokenizer: PreTrainedTokenizerBase,
    config: PretrainConfig,
    spans: PhraseSpans | None,
) -> Objective:
    """Return the objective of a run, with random segmentation of words where it is set.

    Args:
        kind: training module.
        tokenizer: tokenizer of the rows.
        config: settings of the run.
        spans: chooser of the phrases of a file, if any.

    Raises:
        ConfigError: the settings of random segmentation do not fit the kind of tokenizer.
        ModelError: whole words are masked, and the tokenizer does not mark words.
    """
    share = config.mask_probability
    objective: Objective = (
        MaskedLanguageModel(tokenizer, share, config.seed, spans)
        if spans
        else kind.objective(tokenizer, share, config.seed)
    )
    if segmenter := segmenter_of(tokenizer, config):
        return Resegmented(objective, tokenizer, segmenter, config.seed, config.max_length)
    return objective


def check_occurring(
    spans: PhraseSpans, rows: TokenDataset, phrases: Sequence[str], config: PretrainConfig
) -> None:
    """Raise DataError where no row has a phrase that fits, so that only words would be masked."""
    occurs = False
    for number in range(len(rows)):
        found = spans.found(rows[number]["input_ids"], config.mask_probability)
        if any(found):
            return
        occurs = occurs or bool(found)
    of_file = f"none of the {len(phrases)} phrases of {config.phrases}"
    if occurs:
        raise DataError(
            f"{of_file} fits: each has more tokens than are masked of a row where it occurs "
            f"(max_length={config.max_length}, mask_probability={config.mask_probability}). Raise "
            "one of these, give shorter phrases, or take objective wwm."
        )
    raise DataError(
        f"{of_file} occurs in the corpus, {phrases[0]!r} among them. Give phrases as the corpus "
        "spells them, one a line; or take objective wwm."
    )


def read_phrases(path: Path) -> tuple[str, ...]:
    """Return the phrases of a file, one per line.

    Raises:
        DataError: the file cannot be read, or has no phrases.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"phrases {path}: {error}. Give a text file in UTF-8, one phrase a line."
        ) from None
    phrases = tuple(dict.fromkeys(line.strip() for line in lines if not is_blank(line)))
    if not phrases:
        raise DataError(f"phrases {path}: the file has no phrase. Write one a line.")
    return phrases


def start_from(
    source: str, config: PretrainConfig
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder with a masked-language head for further training, and its tokenizer.

    Raises:
        ConfigError: the encoder has fewer positions than `config.max_length`.
        ModelError: it cannot be loaded or trained, or its tokenizer lacks mask or framing tokens.
    """
    check_trainable(source)
    torch.manual_seed(config.seed)  # for a missing head
    model, tokenizer = load_reader_of_words(source, new_head=True)
    check_positions(config.max_length, model.config)
    # later stages read texts as long as these rows
    tokenizer.model_max_length = max(longest_input(tokenizer), config.max_length)
    if None in (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ModelError(
            f"the tokenizer of {source!r} has no tokens for both ends of a row. Give a masked "
            "language model, such as a BERT."
        )
    heads = [name for name in model.config.architectures or () if name.endswith(OF_LABELS)]
    if heads:
        logger.warning(
            "%s was fine-tuned on labels (%s): its fine-tuned encoder is trained further, without "
            "its head. The usual start is the encoder that it was tuned from",
            source,
            ", ".join(heads),
        )
    return model, tokenizer


def check_trainable(source: str) -> None:
    """Raise ModelError for an artifact without trainable weights or a language-model class."""
    if (artifact := artifact_at(source)) is None:
        return
    card = artifact.card
    step = f"Give the encoder that it was made from{_parent_of(artifact)}."
    if card.kind != "torch":
        raise ModelError(
            f"{source} (kind {card.kind}, stage {card.stage}) has no weights that can be trained. "
            f"{step}"
        )
    if card.family in OWN_MODELS:
        raise ModelError(
            f"{source} (family {card.family}, stage {card.stage}) has a form of bertender's own, "
            f"which has no head that predicts words. {step} Then fine-tune the result, and prune "
            "or distil it anew."
        )


def _parent_of(artifact: Artifact) -> str:
    parent = artifact.card.parent
    return f", {Path(os.path.normpath(artifact.path / parent.path))}" if parent else ""


def with_shape_of(model: PreTrainedModel, config: PretrainConfig) -> PretrainConfig:
    """Return the config for the card: the existing encoder's shape, and no kind of tokenizer."""
    words: Any = model.get_input_embeddings()
    return config.changed(
        {
            "tokenizer": None,
            "vocabulary_size": words.num_embeddings,
            "layers": model.config.num_hidden_layers,
            "hidden_size": model.config.hidden_size,
            "heads": model.config.num_attention_heads,
        }
    )


def train_in_phases(
    module: PretrainingModule,
    objective: Objective,
    stored_rows: Callable[[int], tuple[TokenDataset, TokenDataset]],
    perplexity_of: str | None,
    config: PretrainConfig,
    work: Path,
    description: str,
) -> dict[str, TrainingReport]:
    """Train on rows of one length, or on short rows first and long rows at the end.

    BERT trains on rows of 128 tokens for nine tenths of the steps, then on 512 tokens to learn the
    later positions (Devlin et al. 2018, arXiv 1810.04805, appendix A.2). The total number of steps
    equals the config's epochs over short rows. An interrupted run continues in its phase: the end
    of an earlier phase is saved as a checkpoint too. Departure: each phase has its own optimizer
    and schedule, and with `tokens_per_batch`, batches have equal numbers of tokens, not rows.

    Args:
        module: training module, trained in place.
        objective: loss of the module.
        stored_rows: (most tokens of a row) -> training and held-out rows.
        perplexity_of: part of the held-out loss for the perplexity.
        config: steps, rates and lengths.
        work: directory of the checkpoints.
        description: text of the progress bar.

    Returns:
        The report of each phase, by name.
    """
    reports: dict[str, TrainingReport] = {}
    for phase, folder, is_last in in_order(config.phases(), work):
        rows, held_out = stored_rows(phase.max_length)
        if not reports:
            whole = len(planned(rows, config))
        left = whole - sum(report.steps for report in reports.values())
        steps = max(1, left if is_last else round(phase.share * whole))
        epoch = len(planned(rows, config.model_copy(update={"epochs": 1})))
        epochs = max(config.epochs, math.ceil(steps / epoch) + 1)  # an epoch may lack a batch
        reports[phase.name] = train(
            module,
            rows,
            objective,
            config.model_copy(update={"epochs": epochs}),
            folder,
            description=description if is_last else f"{description}: {phase.name}",
            at_epoch_end=partial(
                held_out_loss, objective=objective, examples=held_out, perplexity_of=perplexity_of
            ),
            steps=steps,
        )
    return reports


def encoder_config(
    config: PretrainConfig, tokenizer: PreTrainedTokenizerBase, positions: int | None = None
) -> BertConfig:
    """Return the config of a new encoder; like BERT's, its feed-forward part is 4 x the width.

    Args:
        config: settings with the sizes.
        tokenizer: tokenizer with the vocabulary.
        positions: most tokens of an input; by default those of the longest row, at least 128.
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
    """Return the expected encoder of a config, without weights."""
    shape = encoder_config(config, stand_in_tokenizer())
    model = without_weights(lambda: TRAINING_MODULES[config.objective].untrained(shape))
    return None if model is None else ExpectedModel.of(model.config)


def check_stackable(shallow: Artifact, config: PretrainConfig, family: str) -> None:
    """Raise ConfigError where an encoder of `config` cannot grow from `shallow`."""
    name = f"stack_from={str(shallow.path)!r}"
    if shallow.card.stage != "pretrain":
        raise ConfigError(
            f"{name} is an artifact of stage {shallow.card.stage!r}. Give one of `pretrain`."
        )
    if shallow.card.config.get("encoder"):
        raise ConfigError(
            f"{name} was trained from another encoder, and has its shape. Give one that was "
            "trained from the beginning."
        )
    check_same_shape(name, shallow.card.family, shallow.card.config, config, family)
    if config.max_length > (positions := positions_of_shallow(shallow)):
        raise ConfigError(
            f"max_length={config.max_length}: {name} has positions for {positions} tokens only. "
            "Give at most that many."
        )


def check_same_shape(
    name: str, shallow_family: str, shallow: Mapping[str, Any], config: PretrainConfig, family: str
) -> None:
    """Raise ConfigError where an encoder of `config` cannot grow from one with the settings
    `shallow`."""
    if shallow_family != family:
        raise ConfigError(
            f"{name} is of family {shallow_family!r}, and objective {config.objective!r} "
            f"trains one of {family!r}. Choose an objective of its own family."
        )
    for field in MUST_AGREE:
        own, theirs = getattr(config, field), shallow[field]
        if own != theirs:
            raise ConfigError(
                f"{field}={own}: {name} has {field}={theirs}, and only the depth can grow. Give "
                f"{field}={theirs}."
            )
    if config.layers <= (layers := shallow["layers"]):
        raise ConfigError(
            f"layers={config.layers}: {name} has {layers} already. Give more; twice is usual."
        )


def positions_of_shallow(shallow: Artifact) -> int:
    """Return the shallower encoder's number of positions."""
    config = open_pretrained(AutoConfig, shallow.path, local_files_only=True)
    return int(config.max_position_embeddings)


def stack(model: PreTrainedModel, shallow: Artifact) -> None:
    """Copy a shallower encoder's weights into `model`, repeating its layers.

    Progressive stacking (Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking"):
    layer i of the deeper encoder is layer i mod L of the L shallow ones (algorithm 1 doubles).
    Embeddings, vocabulary and the language head are copied. Heads of the training start untrained.
    """
    weights = load_file(shallow.path / SAFE_WEIGHTS_NAME)
    prefix = f"{model.base_model_prefix}.{family_of(model).layers}."
    depth = int(shallow.card.config["layers"])
    stacked = {}
    for key in model.state_dict():
        source = key
        if key.startswith(prefix):
            layer, _, rest = key.removeprefix(prefix).partition(".")
            source = f"{prefix}{int(layer) % depth}.{rest}"
        # tied weights are stored once; a pooler exists where the shallower objective has one
        if source in weights:
            stacked[key] = weights[source]
    model.load_state_dict(stacked, strict=False)
