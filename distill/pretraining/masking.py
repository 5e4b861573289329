"""Masking: which tokens of a batch are predicted, and what the model sees in their place."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ModelError
from bertender.problems.problem import NO_LABEL
from bertender.training.examples import TensorBatch

# --- from distill.objectives.masking
# Masking: which tokens of a batch are asked for, and what the model sees in their place.
#
# A chooser selects them (single tokens, whole words, spans of words); of those, 80 % become
# [MASK], 10 % a random token, 10 % stay (Devlin et al. 2018, arXiv 1810.04805, section 3.1).
# Special
# tokens and padding are never chosen.


class Tokens(Protocol):
    """Attributes of a vocabulary that masking reads; a tokenizer has them."""

    @property
    def mask_token_id(self) -> Any: ...

    @property
    def all_special_ids(self) -> list[int]: ...

    def __len__(self) -> int: ...


MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1

Chooser = Callable[[torch.Tensor, torch.Tensor, float, torch.Generator], torch.Tensor]
"""(token ids, which may be chosen, share, generator) -> which are; all (batch, seq)"""
Fates = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(a draw for each token, which are chosen) -> the draw of each; all (batch, seq)"""


def step_generator(seed: int, step: int) -> torch.Generator:
    """Return what a step draws from; a resumed run repeats it, other processes have their own."""
    process = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    return torch.Generator().manual_seed(hash((seed, step, process)))


def single_tokens(
    input_ids: torch.Tensor, allowed: torch.Tensor, share: float, generator: torch.Generator
) -> torch.Tensor:
    """Choose each token by itself, and the first that may be where that leaves none.

    A batch without a target would teach nothing.
    """
    draws = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
    chosen = (draws < share) & allowed
    if not chosen.any():
        first = allowed.flatten().int().argmax()
        chosen.view(-1)[first] = allowed.flatten()[first]
    return chosen


class WordSpans:
    """Choose spans of whole words, row by row, until the row's share of tokens is used up.

    A span begins at a random word. It ends early before a word that is chosen already, before a
    special token, and before a word that would go beyond the share. A row with an ordinary word
    always has one chosen.

    Args:
        continues: which tokens of the vocabulary continue a word, (vocab,).
        lengths: how often a span has 1, 2, ... words, as weights.
        pad_token_id: where set, the last word of a row is never chosen, so that each span has a
            token after it.
    """

    def __init__(
        self, continues: torch.Tensor, lengths: Sequence[float], pad_token_id: int | None = None
    ) -> None:
        self.continues = continues
        self.lengths = torch.tensor(lengths)
        self.pad_token_id = pad_token_id

    def __call__(
        self,
        input_ids: torch.Tensor,
        allowed: torch.Tensor,
        share: float,
        generator: torch.Generator,
    ) -> torch.Tensor:
        chosen = torch.zeros_like(allowed, device="cpu")
        for row, words in enumerate(self._words(input_ids.cpu(), allowed.cpu())):
            budget = max(1, round(share * sum(end - start for start, end in words)))
            for start, end in self._drawn(self._bounded(words, input_ids[row]), budget, generator):
                chosen[row, start:end] = True
        return chosen.to(allowed.device)

    def _words(self, input_ids: torch.Tensor, allowed: torch.Tensor) -> list[list[tuple[int, int]]]:
        """Return the words of each row: where they start and, exclusively, end."""
        goes_on = self.continues[input_ids] & allowed & functional.pad(allowed, (1, 0))[:, :-1]
        starts = allowed & ~goes_on
        ends = allowed & ~functional.pad(goes_on, (0, 1))[:, 1:]
        return [
            list(
                zip(start.nonzero()[:, 0].tolist(), (end.nonzero()[:, 0] + 1).tolist(), strict=True)
            )
            for start, end in zip(starts, ends, strict=True)
        ]

    def _bounded(self, words: list[tuple[int, int]], row: torch.Tensor) -> list[tuple[int, int]]:
        """Leave out a last word that nothing follows, where something must."""
        if self.pad_token_id is None or not words:
            return words
        end = words[-1][1]
        followed = end < len(row) and row[end] != self.pad_token_id
        return words if followed else words[:-1]

    def _drawn(
        self, words: list[tuple[int, int]], budget: int, generator: torch.Generator
    ) -> list[tuple[int, int]]:
        """Return the words of spans that use up a budget of tokens."""
        if not words:
            return []
        order = torch.randperm(len(words), generator=generator).tolist()
        drawn = torch.multinomial(self.lengths, len(words), True, generator=generator)
        breaks = {
            index for index, (one, next_) in enumerate(pairwise(words), 1) if one[1] != next_[0]
        }
        taken: dict[int, tuple[int, int]] = {}
        left = budget
        for first, length in zip(order, (drawn + 1).tolist(), strict=True):
            for index in range(first, min(first + length, len(words))):
                size = words[index][1] - words[index][0]
                if index in taken or size > left or (index > first and index in breaks):
                    break
                taken[index] = words[index]
                left -= size
            if left == 0:
                break
        return list(taken.values()) or [words[order[0]]]


def each_alone(draws: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Give each token its own draw."""
    return draws


def each_run(draws: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Give all tokens of a run of chosen ones the draw of its first."""
    first, _ = run_bounds(chosen)
    return draws.gather(1, first)


def run_bounds(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the run of chosen tokens that each is in begins and ends: two of (batch, seq).

    What stands at other tokens means nothing.
    """
    length = chosen.shape[1]
    positions = torch.arange(length, device=chosen.device).expand(chosen.shape)
    begins = chosen & ~functional.pad(chosen, (1, 0))[:, :-1]
    ends = chosen & ~functional.pad(chosen, (0, 1))[:, 1:]
    first = positions.where(begins, 0).cummax(dim=1).values
    last = positions.where(ends, length - 1).flip(1).cummin(dim=1).values.flip(1)
    return first, last


class Masking:
    """Masked inputs and targets of a batch.

    Args:
        tokens: names the mask, the special tokens and the size of the vocabulary.
        share: of the ordinary tokens, so many are chosen.
        choose: which.
        fates: whether the tokens of a run are masked, replaced or left together.
    """

    def __init__(
        self,
        tokens: Tokens,
        share: float,
        choose: Chooser = single_tokens,
        fates: Fates = each_alone,
    ) -> None:
        self.share = share
        self.choose = choose
        self.fates = fates
        self.mask_token_id = int(tokens.mask_token_id)
        self.vocabulary_size = len(tokens)
        self.special_ids = torch.tensor(tokens.all_special_ids)

    def __call__(
        self, input_ids: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return masked ids and targets, both (batch, seq); NO_LABEL where nothing is asked."""
        chosen = self.chosen(input_ids, generator)
        draws = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
        words = torch.randint(self.vocabulary_size, input_ids.shape, generator=generator)
        fate = self.fates(draws, chosen)
        masked = chosen & (fate < MASKED_SHARE)
        replaced = chosen & (fate >= MASKED_SHARE) & (fate < MASKED_SHARE + RANDOM_SHARE)
        result = input_ids.masked_fill(masked, self.mask_token_id)
        result = torch.where(replaced, words.to(input_ids.device), result)
        return result, input_ids.masked_fill(~chosen, NO_LABEL)

    def masked_batch(self, batch: TensorBatch, generator: torch.Generator) -> TensorBatch:
        """Return a batch with its tokens masked, and its `targets` (batch, seq)."""
        input_ids, targets = self(batch["input_ids"], generator)
        return {**batch, "input_ids": input_ids, "targets": targets}

    def chosen(self, input_ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return which tokens are asked for: (batch, seq), boolean."""
        return self.choose(input_ids, self.ordinary(input_ids), self.share, generator)

    def ordinary(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return which tokens are neither special nor padding: (batch, seq), boolean."""
        return ~torch.isin(input_ids, self.special_ids.to(input_ids.device))


# --- from distill.corpora.word_boundaries
# Tokens of a vocabulary that continue a word, found by their marks.
#
# WordPiece marks what continues ("##ing"); byte-level BPE and SentencePiece mark what begins ("Ġ"
# and "▁" stand for the space before a word). Of the latter, a token of punctuation alone begins a
# word of its own, although no space stands before it.

Rule = Callable[[str], bool]
"""token -> whether it continues a word"""
Part = Mapping[str, Any]
"""The description of a tokenizer's model, pre-tokenizer or decoder."""

BYTE_LEVEL_SPACE = "Ġ"


def continues_word(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """Return for each token of the vocabulary whether it continues a word: (vocab,), boolean.

    Raises:
        ModelError: the tokenizer marks neither beginnings nor continuations.
    """
    rule = _rule_of(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return torch.tensor([rule(token) for token in tokens])


def _wordpiece(part: Part) -> Rule:
    prefix: str = part["continuing_subword_prefix"]
    return lambda token: token.startswith(prefix)


def _byte_level(part: Part) -> Rule:
    def continues(token: str) -> bool:
        # what is not ASCII stands for a byte of a longer character
        alone = token.isascii() and _is_punctuation(token)
        return not token.startswith(BYTE_LEVEL_SPACE) and not alone

    return continues


def _metaspace(part: Part) -> Rule:
    space: str = part["replacement"]
    return lambda token: not token.startswith(space) and not _is_punctuation(token)


RULES: Mapping[str, Callable[[Part], Rule]] = {
    "WordPiece": _wordpiece,
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
}
"""By the type that the `tokenizers` library gives a part of a tokenizer."""


def _rule_of(tokenizer: PreTrainedTokenizerBase) -> Rule:
    parts = list(_parts(tokenizer)) if isinstance(tokenizer, PreTrainedTokenizerFast) else []
    for part in parts:
        if part["type"] in RULES:
            return RULES[part["type"]](part)
    kinds = ", ".join(part["type"] for part in parts) or type(tokenizer).__name__
    raise ModelError(
        f"this tokenizer ({kinds}) does not mark where a word begins, so that no whole word can be "
        f"masked. Choose an objective that masks single tokens, or a tokenizer of these kinds: "
        f"{', '.join(RULES)}."
    )


def _parts(tokenizer: PreTrainedTokenizerFast) -> Iterator[Part]:
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("model", "pre_tokenizer", "decoder"):
        part = description[name] or {"type": "none"}
        # a sequence holds its parts under "pretokenizers" or "decoders"
        yield from next((inner for inner in part.values() if _is_parts(inner)), [part])


def _is_parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) and "type" in v for v in value)


def _is_punctuation(token: str) -> bool:
    return all(unicodedata.category(letter)[0] in "PS" for letter in token)
