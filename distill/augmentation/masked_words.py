"""The words that a masked language model finds likely in place of each word of a text.

The model reads the text twice, with the word masked and as it is: [CLS] masked [SEP] text [SEP],
so that its words keep to what was meant. It is asked for words that are single tokens, and
predicts single tokens. Texts are processed some hundreds at a time, and each such part of the
work is stored in the cache folder, so that a killed run continues after the last of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.cache_folder import cache_directory
from bertender.core.progress import progress_bar
from bertender.text.batch import longest_input
from bertender.text.batching import length_buckets
from bertender.training.cached_tensors import cached_tensor
from bertender.training.examples import Padding, TensorBatch, TokenDataset, model_inputs
from distill.augmentation.language_models import LanguageModel
from distill.augmentation.whole_words import WholeWords
from distill.augmentation.words import Span, replaceable_words

__all__ = ["TEXTS_AT_ONCE", "Blank", "blanks_of", "masked_words", "questions_of"]

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
