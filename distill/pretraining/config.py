"""Settings of `pretrain`, with its objectives and kinds of tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from bertender.core.config import Rule, Table
from bertender.training.config import TrainingConfig

CORPUS_HELP = "docs, files (.txt, .txt.xz, .parquet), or hub data sets; several by commas"
TEXT_COLUMN_HELP = "column of the corpus's text, in Parquet files and hub data sets"
MASKED_LANGUAGE_MODEL = "masked_language_model"
SHORT_SHARE = 0.9
NEW_ENCODER_RATE, ENCODER_RATE = 0.0005, 0.0001
"""Default peak learning rates of a new encoder, and of an existing one."""
PHRASE = "phrase"
FULL_SENTENCES, DOC_SENTENCES = "full-sentences", "doc-sentences"


@dataclass(frozen=True)
class PretrainingObjective:
    """A pre-training objective; `pretrain.TRAINING_MODULES` has its module by the same name."""

    summary: str
    paper: str
    family: str = "bert"
    """The model's architecture in FAMILIES."""
    perplexity_of: str | None = "mlm"
    """The part of the loss whose exponential is reported as perplexity."""
    problem_type: str = MASKED_LANGUAGE_MODEL
    pairs: bool = False
    """Whether a row is a pair of segments of a document."""
    continues: bool = False
    """Whether existing encoders can train with it, since its only head predicts words."""

    @property
    def predicts_words(self) -> bool:
        """Whether the model has a masked-language head."""
        return self.problem_type == MASKED_LANGUAGE_MODEL


OBJECTIVES = Table(
    "pre-training objective",
    {
        "mlm": PretrainingObjective(
            summary="predict masked tokens, masked anew in every epoch",
            paper="Devlin et al. 2018, arXiv 1810.04805; "
            "masks of Liu et al. 2019, arXiv 1907.11692",
            continues=True,
        ),
        "mlm+nsp": PretrainingObjective(
            summary="predict masked tokens, and whether the second segment follows the first",
            paper="Devlin et al. 2018, arXiv 1810.04805",
            pairs=True,
        ),
        "mlm+sop": PretrainingObjective(
            summary="predict masked n-grams, and whether two segments are swapped; ALBERT",
            paper="Lan et al. 2019, arXiv 1909.11942",
            family="albert",
            pairs=True,
        ),
        "mlm+structure": PretrainingObjective(
            summary="predict masked tokens, the order of shuffled trigrams, and whether the second "
            "segment is the next, the previous or another; StructBERT",
            paper="Wang et al. 2019, arXiv 1908.04577",
            pairs=True,
        ),
        "mlm+word-order": PretrainingObjective(
            summary="predict masked tokens, and the order of shuffled trigrams",
            paper="Wang et al. 2019, arXiv 1908.04577",
            continues=True,
        ),
        "phrase": PretrainingObjective(
            summary="predict masked words and phrases of a file, each as a whole; ERNIE",
            paper="Sun et al. 2019, arXiv 1904.09223",
            continues=True,
        ),
        "rtd": PretrainingObjective(
            summary="detect the tokens that a small generator has replaced; ELECTRA",
            paper="Clark et al. 2020, arXiv 2003.10555",
            family="electra",
            perplexity_of=None,
            problem_type="replaced_token_detection",
        ),
        "rtd-gdes": PretrainingObjective(
            summary="the same, with gradient-disentangled embeddings; DeBERTa-v3",
            paper="He et al. 2021, arXiv 2111.09543",
            family="electra",
            perplexity_of=None,
            problem_type="replaced_token_detection",
        ),
        "span": PretrainingObjective(
            summary="predict masked spans, from their boundaries too",
            paper="Joshi et al. 2019, arXiv 1907.10529",
        ),
        "wwm": PretrainingObjective(
            summary="predict masked words, all tokens of a word together",
            paper="Devlin et al. 2018, arXiv 1810.04805, as published in 2019",
            continues=True,
        ),
    },
)


@dataclass(frozen=True)
class TokenizerKind:
    """A kind of tokenizer; `pretraining.vocabularies.train_tokenizer` trains one."""

    summary: str
    paper: str
    smallest: int = 100
    """Fewest entries of a vocabulary of this kind."""
    sampled_by: str | None = None
    """Setting for random segmentation of words in training."""


WORDPIECE = "wordpiece"
TOKENIZERS = Table(
    "tokenizer",
    {
        WORDPIECE: TokenizerKind(
            summary="uncased WordPiece tokens, as BERT's",
            paper="Devlin et al. 2018, arXiv 1810.04805",
        ),
        "bpe": TokenizerKind(
            summary="merged bytes, as RoBERTa's: any text, cased, without unknown tokens",
            paper="Sennrich et al. 2016, arXiv 1508.07909; Liu et al. 2019, arXiv 1907.11692",
            smallest=5 + 256,  # special tokens, and the bytes
            sampled_by="bpe_dropout",
        ),
        "char-bpe": TokenizerKind(
            summary="merged letters with marks at the end of words, uncased, as GPT-1's",
            paper="Sennrich et al. 2016, arXiv 1508.07909",
            sampled_by="bpe_dropout",
        ),
        "unigram": TokenizerKind(
            summary="uncased tokens of a unigram language model, as ALBERT's",
            paper="Kudo 2018, arXiv 1804.10959",
            sampled_by="subword_alpha",
        ),
        "sentencepiece": TokenizerKind(
            summary="tokens of a unigram language model that decode to the unchanged text",
            paper="Kudo and Richardson 2018, arXiv 1808.06226",
            smallest=5 + 256 + 100,  # special tokens, bytes, and letters
            sampled_by="subword_alpha",
        ),
    },
)


@dataclass(frozen=True)
class LengthPhase:
    """A phase of training on rows of one length."""

    name: str
    max_length: int
    share: float
    """Share of the steps of the run."""


def _uneven_heads(config: PretrainConfig) -> str:
    fitting = [heads for heads in range(1, 33) if config.hidden_size % heads == 0]
    return (
        f"heads={config.heads} do not divide hidden_size={config.hidden_size}. "
        f"Heads that do: {', '.join(map(str, fitting))}."
    )


def _kind_of(config: PretrainConfig) -> TokenizerKind:
    """Return the kind of tokenizer to train; the first kind if there is an encoder."""
    return TOKENIZERS[config.tokenizer or WORDPIECE]


def _small_vocabulary(config: PretrainConfig) -> str:
    return (
        f"vocabulary_size={config.vocabulary_size} is too small for tokenizer "
        f"{config.tokenizer!r}, which needs {_kind_of(config).smallest} at least. Give "
        "more, or choose another tokenizer."
    )


OF_A_NEW_ENCODER = frozenset(
    {"tokenizer", "vocabulary_size", "layers", "hidden_size", "heads", "stack_from"}
)


def _needs_new_heads(config: PretrainConfig) -> str:
    rows = ", ".join(name for name, row in OBJECTIVES.items() if row.continues)
    return (
        f"objective {config.objective!r} needs heads that encoders do not have. With encoder, give "
        f"one of {rows}."
    )


def _sampled_by_another(name: str) -> Rule[PretrainConfig]:
    """Return the rule that a setting of random segmentation fits the kind of tokenizer."""
    rows = ", ".join(row for row, kind in TOKENIZERS.items() if kind.sampled_by == name)
    return Rule(
        lambda config: config.encoder is None and _kind_of(config).sampled_by != name,
        f"it splits words of tokenizer {rows}, not of {{tokenizer!r}}. Give one of these, or leave "
        "this out.",
        frozenset({name}),
    )


RULES: Mapping[str, Rule[PretrainConfig]] = {
    "shape with an encoder": Rule(
        lambda config: config.encoder is not None,
        "the encoder has its own shape and vocabulary. Leave this out.",
        OF_A_NEW_ENCODER,
        against="encoder",
        beyond_default=True,
    ),
    "new heads with an encoder": Rule(
        lambda config: config.encoder is not None and not OBJECTIVES[config.objective].continues,
        _needs_new_heads,
    ),
    "language_alpha with one language": Rule(
        lambda config: "," not in config.corpus,
        "corpus={corpus} is one part. Give several by commas, a language each, or leave this out.",
        frozenset({"language_alpha"}),
    ),
    "packing of pairs": Rule(
        lambda config: OBJECTIVES[config.objective].pairs,
        "objective {objective!r} trains on pairs of segments, which never cross documents. Leave "
        "this out.",
        frozenset({"packing"}),
        beyond_default=True,
    ),
    **{f"{name} of others": _sampled_by_another(name) for name in ("subword_alpha", "bpe_dropout")},
    "no phrases": Rule(
        lambda config: config.objective == PHRASE and config.phrases is None,
        "objective {objective!r} masks the phrases of a file. Give it by --phrases, a phrase a "
        "line; or take objective wwm.",
    ),
    "phrases with another objective": Rule(
        lambda config: config.objective != PHRASE,
        f"only objective {PHRASE} masks phrases. Give --objective {PHRASE}, or leave this out.",
        frozenset({"phrases"}),
    ),
    "phrases split at random": Rule(
        lambda config: config.phrases is not None,
        "randomly split words have other tokens than the phrases. Leave this or phrases out.",
        frozenset({"subword_alpha", "bpe_dropout"}),
        against="phrases",
    ),
    "uneven heads": Rule(lambda config: config.hidden_size % config.heads > 0, _uneven_heads),
    "small vocabulary": Rule(
        lambda config: config.vocabulary_size < _kind_of(config).smallest,
        _small_vocabulary,
    ),
    "short_share without short_length": Rule(
        lambda config: config.short_length is None,
        "it needs short_length. Give that too, or leave it out.",
        frozenset({"short_share"}),
        beyond_default=True,
    ),
    "short_length not below max_length": Rule(
        lambda config: (config.short_length or 0) >= config.max_length,
        "short_length={short_length} must be below max_length={max_length}. Give a smaller one, or "
        "a larger max_length.",
    ),
}
"""Conflicts of settings."""


class PretrainConfig(TrainingConfig):
    """Settings of `pretrain`."""

    panel: ClassVar[str] = "Encoder"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Corpus": (
            "text_column",
            "language_alpha",
            "packing",
            "phrases",
            "subword_alpha",
            "bpe_dropout",
            "mask_probability",
            "short_length",
            "short_share",
        ),
    }
    main: ClassVar[tuple[str, ...]] = ("corpus", "encoder", "layers", "hidden_size", "epochs")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    shown_defaults: ClassVar[Mapping[str, str]] = {
        "learning_rate": f"{NEW_ENCODER_RATE}; {ENCODER_RATE} with an encoder"
    }

    corpus: str = Field("docs", description=CORPUS_HELP)
    text_column: str = Field("text", description=TEXT_COLUMN_HELP)
    language_alpha: float | None = Field(
        None,
        ge=0,
        le=1,
        description="sample the parts of the corpus, a language each, by their shares to this "
        "power: 0 for equal shares, 1 for unchanged ones; 0.5 is usual",
    )
    encoder: str | None = Field(
        None,
        min_length=1,
        description="encoder to train further, instead of a new one: a folder, a hub name or a "
        "packaged one",
    )
    objective: Annotated[str, OBJECTIVES.validator()] = Field(
        "mlm", description=f"objective: {', '.join(OBJECTIVES)} (see docs/how-to/pretrain.md)"
    )
    tokenizer: Annotated[str | None, TOKENIZERS.validator()] = Field(
        WORDPIECE,
        description=f"kind of tokenizer: {', '.join(TOKENIZERS)} (in a card, none where an encoder "
        "has its own)",
    )
    vocabulary_size: int = Field(8000, ge=100, description="most entries of the vocabulary")
    layers: int = Field(4, ge=1, description="the encoder's layers")
    hidden_size: int = Field(256, ge=8, description="width of the encoder")
    heads: int = Field(4, ge=1, description="attention heads; must divide hidden_size")
    stack_from: Path | None = Field(
        None,
        description="artifact of a shallower `pretrain` whose layers are repeated at the start",
    )
    packing: Literal["full-sentences", "doc-sentences"] = Field(
        "full-sentences",
        description="rows of sentences continue in the next document, or end with their own",
    )
    phrases: Path | None = Field(
        None, description="file of the phrases that objective phrase masks as a whole, one a line"
    )
    subword_alpha: float | None = Field(
        None,
        gt=0,
        le=1,
        description="split words of unigram and sentencepiece at random in training, the more the "
        "nearer to 0; 0.2 is usual",
    )
    bpe_dropout: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="probability of skipping a merge of bpe and char-bpe in training; 0.1 is usual",
    )
    mask_probability: float = Field(0.15, gt=0, lt=1, description="share of tokens to predict")
    max_length: int = Field(128, ge=8, description="tokens of a row of the corpus, at most")
    short_length: int | None = Field(
        None, ge=8, description="tokens of a row at first; max_length for the last of the steps"
    )
    short_share: float | None = Field(
        None, gt=0, lt=1, description="share of the steps at short_length; 0.9 by default"
    )
    learning_rate: float = Field(NEW_ENCODER_RATE, gt=0, description="peak learning rate")

    def of_encoder(self) -> Self:
        """Return the config for training an existing encoder, with a lower default rate."""
        if self.encoder is None or self.is_explicit("learning_rate"):
            return self
        return self.changed({"learning_rate": ENCODER_RATE})

    def phases(self) -> tuple[LengthPhase, ...]:
        """Return the training phases: one, or one of short rows and one of long rows."""
        if self.short_length is None:
            return (LengthPhase("whole", self.max_length, 1.0),)
        share = self.short_share or SHORT_SHARE
        return (
            LengthPhase("short", self.short_length, share),
            LengthPhase("long", self.max_length, 1 - share),
        )
