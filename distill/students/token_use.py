"""(goes into methods.static by hand)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerBase

from bertender.text.batch import Example

TEXTS_AT_ONCE = 1000
ANY_TEXT = "a"


@dataclass(frozen=True)
class TokenUse:
    """Counts of tokens in texts, and the special tokens of a tokenizer."""

    counts: torch.Tensor
    """(tokens,), how often each occurs."""
    special: tuple[int, ...]
    """Tokens that stand for no part of a text, [CLS] and padding among them."""
    before: tuple[int, ...] = ()
    """Special tokens in front of a text."""
    after: tuple[int, ...] = ()
    """Those behind it."""


def token_use(tokenizer: PreTrainedTokenizerBase, examples: Iterable[Example]) -> TokenUse:
    """Return how a tokenizer frames texts, and how often its tokens occur in examples."""
    counts = torch.zeros(len(tokenizer), dtype=torch.long)
    for batch in _batches(text for example in examples for text in example if text):
        rows = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        counts += torch.bincount(tokens, minlength=len(tokenizer))
    # a text with an unknown token has a part that the table can learn of
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return TokenUse(counts, tuple(sorted(special)), *_frame(tokenizer))


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, TEXTS_AT_ONCE)):
        yield batch


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens in front of a text and behind it."""
    framed: Sequence[int] = tokenizer(ANY_TEXT)["input_ids"]
    text: Sequence[int] = tokenizer(ANY_TEXT, add_special_tokens=False)["input_ids"]
    before = next(at for at in range(len(framed)) if framed[at : at + len(text)] == text)
    return tuple(framed[:before]), tuple(framed[before + len(text) :])
