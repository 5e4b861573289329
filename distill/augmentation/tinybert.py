"""TinyBERT's data augmentation (Jiao et al. 2019, arXiv 1909.10351, Algorithm 1).

Each word of letters that is not a stop word has 15 candidates. Where a masked language model is
available and the word is one token, these are the model's likeliest words in its place, given the
masked text and the original text. Otherwise they are its nearest neighbours in a table of
embeddings. A copy of the text replaces each word with probability 0.4 by one of its candidates,
drawn uniformly.
Departures: the embeddings are the teacher's, where the paper has GloVe. Token vectors do not add up
to a word's vector, so words of several tokens are never replaced. There are 15 candidates after
filtering for other, whole words of letters (the paper takes 15 tokens and then drops those that
continue a word). Both texts of a pair are rewritten in each copy, independently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from bertender.core.files import cache_directory
from bertender.core.progress import progress_bar
from bertender.models.classifier import model_inputs
from bertender.text.batch import length_buckets
from bertender.text.tokenizer import longest_input, padding_of
from bertender.training.checkpoint import cached_tensor, computing_versions
from bertender.training.examples import TokenDataset
from distill.augmentation.words import (
    LanguageModel,
    Material,
    Rewrite,
    Span,
    WholeWords,
    replaceable_words,
    with_words,
)

CANDIDATES = 15
REPLACED_SHARE = 0.4
WORDS_AT_ONCE = 1024
TEXTS_AT_ONCE = 256
TOKENS_PER_BATCH = 2048
"""Less than in other forward passes: each token's logits are as wide as the vocabulary."""

Candidates = Mapping[Span, Sequence[str]]
"""Replacements for words of a text, by span."""


def rewriter(material: Material) -> Rewrite:
    """Return the rewriter of this augmentation."""
    if material.language_model is None:
        return replacing(_nearest_candidates(material), REPLACED_SHARE)
    likely = masked_words(material.language_model, material.texts, CANDIDATES, material.bf16)
    return replacing(likely.__getitem__, REPLACED_SHARE)


def replacing(candidates: Callable[[str], Candidates], share: float) -> Rewrite:
    """Return a rewriter that replaces words by a candidate, each with probability `share`."""

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


def _nearest_candidates(material: Material) -> Callable[[str], Candidates]:
    whole = WholeWords.of(material.tokenizer)
    words = {text[slice(*span)] for text in material.texts for span in replaceable_words(text)}
    ids = whole.numbered(sorted(words), material.tokenizer)
    embeddings = material.teacher.get_input_embeddings().get_parameter("weight").detach().cpu()
    near = nearest_words(embeddings, whole, sorted(set(ids.values())), CANDIDATES)

    def candidates(text: str) -> Candidates:
        spans = ((span, ids.get(text[slice(*span)])) for span in replaceable_words(text))
        return {span: near[number] for span, number in spans if number is not None}

    return candidates


def nearest_words(
    embeddings: torch.Tensor, whole: WholeWords, ids: Sequence[int], count: int
) -> dict[int, tuple[str, ...]]:
    """Return the `count` nearest neighbours of some whole words, by cosine.

    Args:
        embeddings: a model's word embeddings, (vocab, hidden).
        whole: words to compare with.
        ids: ids of the words to find neighbours of, all in `whole`.
        count: maximum number of neighbours.
    """
    known = whole.ids
    table = functional.normalize(embeddings[known].float(), dim=-1)  # (words, hidden)
    places = torch.searchsorted(known, torch.tensor(ids, dtype=torch.long))
    nearest = []
    for some in places.split(WORDS_AT_ONCE):
        cosines = table[some] @ table.T  # (asked, words)
        cosines.scatter_(1, some[:, None], -torch.inf)  # a word is its own nearest
        nearest.append(cosines.topk(min(count, len(table) - 1)).indices)
    neighbours = known[torch.cat(nearest)].tolist()
    return {
        asked: tuple(whole.words[number] for number in numbers)
        for asked, numbers in zip(ids, neighbours, strict=True)
    }


@dataclass(frozen=True)
class Blank:
    """A word that the model shall replace."""

    text: str
    span: Span
    own_id: int
    context: str
    """The text, or as much of it around the word as fits the model twice."""
    start: int
    """Offset of the word in the context."""

    def masked(self, mask: str) -> str:
        """Return the context with a mask in place of the word."""
        end = self.start + self.span[1] - self.span[0]
        return self.context[: self.start] + mask + self.context[end:]


def masked_words(
    language_model: LanguageModel, texts: Sequence[str], count: int, bf16: bool = False
) -> dict[str, Mapping[Span, tuple[str, ...]]]:
    """Return the likeliest replacements of words in each text, by the span of the word.

    The model reads the text twice, masked and original: [CLS] masked [SEP] text [SEP], so that
    replacements fit the meaning. Only single-token words are replaced, by single tokens. Texts are
    processed some hundreds at a time, each time storing the result in the cache folder, so that a
    killed run continues there.

    Args:
        language_model: model that predicts the words.
        texts: distinct texts.
        count: number of replacements, the likeliest first.
        bf16: compute in bf16.

    Raises:
        ModelError: the tokenizer's vocabulary has no whole words.
    """
    whole = WholeWords.of(language_model.tokenizer)
    count, digest = min(count, len(whole.words) - 1), language_model.digest
    likeliest_words: dict[str, dict[Span, tuple[str, ...]]] = {text: {} for text in texts}
    with progress_bar("masked words", len(texts), "texts") as bar:
        for place in range(0, len(texts), TEXTS_AT_ONCE):
            chunk = texts[place : place + TEXTS_AT_ONCE]
            blanks = blanks_of(language_model.tokenizer, whole, chunk)
            likeliest = _likeliest_words(language_model, digest, whole, blanks, count, bf16)
            for blank, ids in zip(blanks, likeliest, strict=True):
                words = tuple(whole.words[number] for number in ids)
                likeliest_words[blank.text][blank.span] = words
            bar.advance(len(chunk))
    return dict(likeliest_words)


def blanks_of(
    tokenizer: PreTrainedTokenizerBase, whole: WholeWords, texts: Sequence[str]
) -> list[Blank]:
    """Return the replaceable single-token words of some texts, in order."""
    tokens = tokenizer(list(texts), add_special_tokens=False, verbose=False)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    room = (longest_input(tokenizer) - special) // 2
    blanks = []
    for row, text in enumerate(texts):
        offsets, ids = tokens[row].offsets, tokens["input_ids"][row]
        for span in replaceable_words(text):
            place, last = (tokens.char_to_token(row, at) for at in (span[0], span[1] - 1))
            if place is None or place != last or ids[place] not in whole.words:
                continue
            start, end = 0, len(text)
            if len(offsets) > room:  # keep `room` tokens of the text, with this one in the middle
                first = min(max(place - room // 2, 0), len(offsets) - room)
                start, end = offsets[first][0], offsets[first + room - 1][1]
            blanks.append(Blank(text, span, ids[place], text[start:end], span[0] - start))
    return blanks


def questions_of(tokenizer: PreTrainedTokenizerBase, blanks: Sequence[Blank]) -> TokenDataset:
    """Return the model's input for each blank, with the mask's token in the column `position`."""
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
    return TokenDataset(columns, padding_of(tokenizer))


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
    reading = digest, bf16, language_model.model.device.type, computing_versions()
    asked = sorted(whole.words), count, sorted(questions.columns.items())
    key = hashlib.sha256(repr((reading, asked)).encode()).hexdigest()
    path = cache_directory() / "augmentation" / f"{key}.safetensors"
    compute = partial(_predict_words, language_model, whole.ids, questions, count, bf16)
    return cached_tensor(path, compute).tolist()


def _predict_words(
    language_model: LanguageModel,
    allowed: torch.Tensor,
    questions: TokenDataset,
    count: int,
    bf16: bool,
) -> torch.Tensor:
    """Return the likeliest allowed ids (questions, count), other than the word's own id."""
    model = language_model.model
    words = torch.empty(len(questions), count, dtype=torch.int32)
    for bucket in length_buckets(questions.lengths, TOKENS_PER_BATCH):
        batch = questions.collate([questions[index] for index in bucket])
        inputs = {name: ids.to(model.device) for name, ids in model_inputs(model, batch).items()}
        with (
            torch.inference_mode(),
            torch.autocast(model.device.type, torch.bfloat16, enabled=bf16),
        ):
            logits = model(**inputs).logits  # (batch, seq, vocab)
        rows = torch.arange(len(logits), device=model.device)
        asked = logits[rows, batch["position"].to(model.device)].float().cpu()  # (batch, vocab)
        asked.scatter_(1, batch["own_id"][:, None], -torch.inf)
        likeliest = asked[:, allowed].topk(count).indices
        words[bucket] = allowed[likeliest].int()
    return words
