"""TinyBERT's data augmentation (Jiao et al. 2019, arXiv 1909.10351, Algorithm 1)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError, ModelError
from bertender.core.files import cache_directory
from bertender.core.progress import progress_bar
from bertender.text.batching import length_buckets
from bertender.text.tokenizer import longest_input
from bertender.training.checkpoint import cached_tensor, tensors_digest
from bertender.training.examples import Padding, TensorBatch, TokenDataset, model_inputs
from distill.augmentation.config import Material, Rewrite
from distill.augmentation.words import Span, WholeWords, replaceable_words, with_words
from distill.teachers.encoders import (
    find_encoder,
    give_every_token_a_row,
    is_available,
    load_masked_language_model,
)
from distill.tokenizers import fitting_tokenizer

# --- from distill.augmentation.neighbours
# The words whose embeddings are nearest to a word's own, by cosine.

WORDS_AT_ONCE = 1024


def nearest_words(
    embeddings: torch.Tensor, whole: WholeWords, ids: Sequence[int], count: int
) -> dict[int, tuple[str, ...]]:
    """Return for each of some whole words the `count` others nearest to it, the nearest first.

    Args:
        embeddings: a model's word embeddings, (vocab, hidden).
        whole: the words that are compared.
        ids: of the words that are asked for; each is one of `whole`.
        count: most words of a result.
    """
    known = whole.ids
    table = functional.normalize(embeddings[known].float(), dim=-1)  # (words, hidden)
    places = torch.searchsorted(known, torch.tensor(ids, dtype=torch.long))
    nearest = [_nearest(table, some, count) for some in places.split(WORDS_AT_ONCE)]
    neighbours = known[torch.cat(nearest)].tolist()
    return {
        asked: tuple(whole.words[number] for number in numbers)
        for asked, numbers in zip(ids, neighbours, strict=True)
    }


def _nearest(table: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places (asked, count) in the table nearest to some of its rows."""
    cosines = table[places] @ table.T  # (asked, words)
    cosines.scatter_(1, places[:, None], -torch.inf)  # a word is its own nearest
    return cosines.topk(min(count, len(table) - 1)).indices


# --- from distill.augmentation.language_models
# Finding the masked language model that proposes words.

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LanguageModel:
    """An encoder with a masked-language-model head, in eval mode, and its tokenizer."""

    source: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def digest(self) -> str:
        """A sha256 of all weights, the head's too."""
        return tensors_digest(self.model.state_dict())


def find_language_model(teacher: Artifact, name: str | None) -> LanguageModel | None:
    """Load the model called `name`, or else the nearest of those that the teacher came from.

    Returns None where no name is set and no origin that is on this machine has a head.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: the named model cannot be had, or
            has no masked-language-model head.
    """
    if name is not None:
        return load_language_model(find_encoder(name, setting="augmentation-model"))
    for source in _origins(teacher):
        try:
            return load_language_model(source)
        except ModelError as error:
            logger.info("%s", error)
    return None


def load_language_model(source: str) -> LanguageModel:
    """Load an encoder with its masked-language-model head, in float32, to where it runs fastest.

    Args:
        source: a folder or a hub name.

    Raises:
        ModelError: it has no such head, no mask token, or cannot be loaded.
    """
    quiet = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # it reports at length that a head is missing
    try:
        model = load_masked_language_model(source)
        tokenizer = fitting_tokenizer(source, model)
        give_every_token_a_row(model, tokenizer)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load the tokenizer of {source!r}: {error}") from None
    finally:
        transformers_logging.set_verbosity(quiet)
    if tokenizer.mask_token is None:
        raise ModelError(f"the tokenizer of {source!r} has no mask token to ask for words with.")
    model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))  # type: ignore[arg-type]
    return LanguageModel(source, model.eval(), tokenizer)


def _origins(artifact: Artifact) -> Iterator[str]:
    """Yield what an artifact was made from, the nearest first: its parents, then an encoder."""
    parent, teacher = artifact.card.parent, artifact.card.config.get("teacher")
    try:
        if parent is not None:
            origin = Artifact.load(artifact.path / parent.path)
            yield str(origin.path)
            yield from _origins(origin)
        elif isinstance(teacher, str) and is_available(teacher):
            yield find_encoder(teacher)
    except BertenderError as error:
        logger.info("%s: what it was made from cannot be read: %s", artifact.path, error)


# --- from distill.augmentation.masked_words
# The words that a masked language model finds likely in place of each word of a text.
#
# The model reads the text twice, with the word masked and as it is: [CLS] masked [SEP] text
# [SEP],
# so that its words keep to what was meant. It is asked for words that are single tokens, and
# predicts single tokens. Texts are processed some hundreds at a time, and each such part of the
# work is stored in the cache folder, so that a killed run continues after the last of them.

TEXTS_AT_ONCE = 256
TOKENS_PER_BATCH = 2048
"""Less than for other forward passes: logits are as wide as the vocabulary, for each token."""


@dataclass(frozen=True)
class Blank:
    """A word that the model is asked for."""

    text: str
    span: Span
    own_id: int
    context: str
    """The text, or as much of it around the word as the model takes twice."""
    start: int
    """Where the word begins in the context."""

    def masked(self, mask: str) -> str:
        """Return the context with a mask in place of the word."""
        end = self.start + self.span[1] - self.span[0]
        return self.context[: self.start] + mask + self.context[end:]


def masked_words(
    language_model: LanguageModel, texts: Sequence[str], count: int, bf16: bool = False
) -> dict[str, Mapping[Span, tuple[str, ...]]]:
    """Return for each text the most likely other words, by where the word stands that they replace.

    Args:
        language_model: what is asked.
        texts: distinct ones.
        count: most words of a result, the likeliest first.
        bf16: compute in bf16.

    Raises:
        ModelError: the tokenizer has no whole words.
    """
    whole = WholeWords.of(language_model.tokenizer)
    count, digest = min(count, len(whole.words) - 1), language_model.digest
    likeliest_words: dict[str, dict[Span, tuple[str, ...]]] = {text: {} for text in texts}
    with progress_bar("masked words", len(texts), "texts") as bar:
        for place in range(0, len(texts), TEXTS_AT_ONCE):
            chunk = texts[place : place + TEXTS_AT_ONCE]
            blanks = blanks_of(language_model.tokenizer, whole, chunk)
            for blank, ids in zip(
                blanks,
                _likeliest_words(language_model, digest, whole, blanks, count, bf16),
                strict=True,
            ):
                words = tuple(whole.words[number] for number in ids)
                likeliest_words[blank.text][blank.span] = words
            bar.advance(len(chunk))
    return dict(likeliest_words)


def blanks_of(
    tokenizer: PreTrainedTokenizerBase, whole: WholeWords, texts: Sequence[str]
) -> list[Blank]:
    """Return the words of some texts that may be replaced and are single tokens, in order."""
    tokens = tokenizer(list(texts), add_special_tokens=False, verbose=False)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    room = (longest_input(tokenizer) - special) // 2
    blanks = []
    for row, text in enumerate(texts):
        for span, place in _single_tokens(tokens, row, text):
            own_id = tokens["input_ids"][row][place]
            if own_id in whole.words:
                start, end = _window(tokens, row, place, room) or (0, len(text))
                blanks.append(Blank(text, span, own_id, text[start:end], span[0] - start))
    return blanks


def questions_of(tokenizer: PreTrainedTokenizerBase, blanks: Sequence[Blank]) -> TokenDataset:
    """Return what the model reads for each blank, and at which token (`position`) the mask is."""
    tokens = tokenizer(
        [blank.masked(tokenizer.mask_token) for blank in blanks],
        [blank.context for blank in blanks],
        truncation=True,
        max_length=longest_input(tokenizer),
    )
    positions = [
        tokens.char_to_token(row, blank.start, sequence_index=0) for row, blank in enumerate(blanks)
    ]
    own_ids = [blank.own_id for blank in blanks]
    columns = {**tokens, "position": positions, "own_id": own_ids}
    return TokenDataset(columns, Padding.of(tokenizer))


def _single_tokens(tokens: BatchEncoding, row: int, text: str) -> Iterator[tuple[Span, int]]:
    """Yield the replaceable words of a text that lie in one token, and its place."""
    for start, end in replaceable_words(text):
        first, last = tokens.char_to_token(row, start), tokens.char_to_token(row, end - 1)
        if first is not None and first == last:
            yield (start, end), first


def _window(tokens: BatchEncoding, row: int, place: int, room: int) -> Span | None:
    """Return which characters to read of a text that is too long, with a token in their middle."""
    offsets = tokens[row].offsets
    if len(offsets) <= room:
        return None
    first = min(max(place - room // 2, 0), len(offsets) - room)
    return offsets[first][0], offsets[first + room - 1][1]


def _likeliest_words(
    language_model: LanguageModel,
    digest: str,
    whole: WholeWords,
    blanks: Sequence[Blank],
    count: int,
    bf16: bool,
) -> list[list[int]]:
    """Return the ids of the likeliest words for each blank, computed once and cached on disk."""
    if not blanks:
        return []
    questions = questions_of(language_model.tokenizer, blanks)
    identity = (digest, sorted(whole.words), count, bf16, sorted(questions.columns.items()))
    key = hashlib.sha256(repr(identity).encode()).hexdigest()
    path = cache_directory() / "augmentation" / f"{key}.safetensors"
    compute = partial(_compute, language_model, whole.ids, questions, count, bf16)
    return cached_tensor(path, compute).tolist()


def _compute(
    language_model: LanguageModel,
    allowed: torch.Tensor,
    questions: TokenDataset,
    count: int,
    bf16: bool,
) -> torch.Tensor:
    """Return the ids (questions, count) of the likeliest of the allowed ids, but never its own."""
    words = torch.empty(len(questions), count, dtype=torch.int32)
    for bucket in length_buckets(questions.lengths, TOKENS_PER_BATCH):
        batch = questions.collate([questions[index] for index in bucket])
        asked = _logits_at_masks(language_model.model, batch, bf16)
        asked.scatter_(1, batch["own_id"][:, None], -torch.inf)
        likeliest = asked[:, allowed].topk(count).indices
        words[bucket] = allowed[likeliest].int()
    return words


def _logits_at_masks(model: PreTrainedModel, batch: TensorBatch, bf16: bool) -> torch.Tensor:
    """Return the logits (batch, vocab) of a batch's questions, each at its mask, on the CPU."""
    device = model.device
    inputs = {name: ids.to(device) for name, ids in model_inputs(model, batch).items()}
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        logits = model(**inputs).logits  # (batch, seq, vocab)
    rows = torch.arange(len(logits), device=device)
    asked: torch.Tensor = logits[rows, batch["position"].to(device)].float().cpu()
    return asked


# --- from distill.augmentation.tinybert
# TinyBERT's data augmentation (Jiao et al. 2019, arXiv 1909.10351, Algorithm 1).
#
# Each word of letters alone that is not a stop word has 15 candidates. Where a masked language
# model
# is available and the word is one token, they are the model's likeliest words in its place, given
# the masked text and the text itself. Otherwise they are the words nearest to it in a table
# of embeddings. A copy of the text replaces each word with probability 0.4 by one of its
# candidates,
# drawn evenly.
# Departures: the embeddings are the teacher's own, where the paper has GloVe. Vectors of tokens
# do
# not add up to that of a word, so that words of several tokens stay as they are. The candidates
# are
# other words than the one replaced and whole words of letters, and are 15 after these are chosen
# (the paper takes 15 tokens and then drops those that continue a word). Both texts of a pair are
# rewritten in each copy, each on its own.

CANDIDATES = 15
REPLACED_SHARE = 0.4

Candidates = Mapping[Span, Sequence[str]]
"""Words that may stand at a place of a text."""


def replacing(candidates: Callable[[str], Candidates], share: float) -> Rewrite:
    """Replace each word that has candidates by one of them, with probability `share`."""

    def rewrite(text: str, generator: np.random.Generator) -> str:
        choices = candidates(text)
        draws = generator.random((len(choices), 2))
        chosen = {
            span: words[int(pick * len(words))]
            for (span, words), (chance, pick) in zip(choices.items(), draws, strict=True)
            if chance < share
        }
        return with_words(text, chosen)

    return rewrite


def rewriter(material: Material) -> Rewrite:
    """Return what rewrites a text."""
    if material.language_model is None:
        return replacing(_near_words(material), REPLACED_SHARE)
    likely = masked_words(material.language_model, material.texts, CANDIDATES, material.bf16)
    return replacing(likely.__getitem__, REPLACED_SHARE)


def _near_words(material: Material) -> Callable[[str], Candidates]:
    whole = WholeWords.of(material.tokenizer)
    words = {text[slice(*span)] for text in material.texts for span in replaceable_words(text)}
    ids = whole.numbered(sorted(words), material.tokenizer)
    embeddings = material.teacher.get_input_embeddings().get_parameter("weight").detach().cpu()
    near = nearest_words(embeddings, whole, sorted(set(ids.values())), CANDIDATES)

    def candidates(text: str) -> Candidates:
        spans = ((span, ids.get(text[slice(*span)])) for span in replaceable_words(text))
        return {span: near[number] for span, number in spans if number is not None}

    return candidates
