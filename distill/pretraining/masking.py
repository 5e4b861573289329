"""Masking: the predicted tokens of a batch, and their replacements.

A chooser selects them (single tokens, whole words, spans of words); 80 % of these become [MASK], 10
% a random token, 10 % remain (Devlin et al. 2018, arXiv 1810.04805, section 3.1). Special tokens
and padding are never chosen.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ModelError
from bertender.metrics.metric import NO_LABEL
from bertender.training.examples import TensorBatch
from bertender.training.heads.head import PART


class Tokens(Protocol):
    """Attributes of a tokenizer that masking reads."""

    @property
    def mask_token_id(self) -> Any: ...

    @property
    def all_special_ids(self) -> list[int]: ...

    def __len__(self) -> int: ...


MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1

Chooser = Callable[[torch.Tensor, torch.Tensor, float, torch.Generator], torch.Tensor]
"""(token ids, mask of candidates, share, generator) -> mask of chosen tokens; all (batch, seq)"""


def step_generator(seed: int, step: int) -> torch.Generator:
    """Return the random generator of a step: the same in a resumed run, but another one in each
    process and each part of an accumulated batch."""
    process = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    part = PART.get()
    own = (seed, step, process, *([part.number] if part and part.number else []))
    return torch.Generator().manual_seed(hash(own))


def single_tokens(
    input_ids: torch.Tensor, allowed: torch.Tensor, share: float, generator: torch.Generator
) -> torch.Tensor:
    """Choose tokens independently; if none, the first candidate, since a batch needs a target."""
    draws = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
    chosen = (draws < share) & allowed
    if not chosen.any():
        first = allowed.flatten().int().argmax()
        chosen.view(-1)[first] = allowed.flatten()[first]
    return chosen


class WordSpans:
    """Choose spans of whole words in each row until its share of tokens is used up. A span begins
    at a random word. It ends before a word that is already chosen, before a special token, and
    before a word that would exceed the share. A row with ordinary words always has a chosen one.

    Args:
        marks: word marks of the vocabulary.
        lengths: weights of spans of 1, 2, ... words.
        pad_token_id: if set, the last word of a row is never chosen, so that a token follows each
            span.
    """

    def __init__(
        self, marks: WordMarks, lengths: Sequence[float], pad_token_id: int | None = None
    ) -> None:
        self.marks = marks
        self.lengths = torch.tensor(lengths)
        self.pad_token_id = pad_token_id

    def __call__(
        self,
        input_ids: torch.Tensor,
        allowed: torch.Tensor,
        share: float,
        generator: torch.Generator,
    ) -> torch.Tensor:
        ids, free = input_ids.cpu(), allowed.cpu()
        chosen = torch.zeros_like(free)
        for row, words in enumerate(self.words(ids, free)):
            budget = self.budget(words, share)
            words = self.units(ids[row], words, budget)
            if self.pad_token_id is not None and words:
                end = words[-1][1]
                if end == ids.shape[1] or ids[row, end] == self.pad_token_id:
                    words = words[:-1]
            for start, end in self._drawn(words, budget, generator):
                chosen[row, start:end] = True
        return chosen.to(allowed.device)

    def budget(self, words: Sequence[tuple[int, int]], share: float) -> int:
        """Return the number of tokens to choose in a row of these words, at least 1."""
        return max(1, round(share * sum(end - start for start, end in words)))

    def units(
        self, ids: torch.Tensor, words: list[tuple[int, int]], budget: int
    ) -> list[tuple[int, int]]:
        """Return the units of a row (seq,): its words."""
        return words

    def words(self, ids: torch.Tensor, free: torch.Tensor) -> list[list[tuple[int, int]]]:
        """Return the words of each row, as start and end positions.

        Args:
            ids: (batch, seq).
            free: mask of tokens that are neither special nor padding, (batch, seq).
        """
        continuing = self.marks.continuing(ids) & free & functional.pad(free, (1, 0))[:, :-1]
        starts = free & ~continuing
        ends = free & ~functional.pad(continuing, (0, 1))[:, 1:]
        return [
            list(
                zip(
                    first.nonzero()[:, 0].tolist(), (last.nonzero()[:, 0] + 1).tolist(), strict=True
                )
            )
            for first, last in zip(starts, ends, strict=True)
        ]

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


class PhraseSpans(WordSpans):
    """Choose whole words and whole phrases.

    ERNIE's phrase and entity masks (Sun et al. 2019, arXiv 1904.09223, section 3.2): the longest
    phrase at a place is a unit, and all its tokens are predicted together. A phrase with more
    tokens than may be chosen in its row is split into its words, or shorter phrases. Departures:
    the paper finds phrases by chunkers, and learns words, phrases and entities in stages; here one
    list has them all, and they are learned at once.

    Args:
        tokenizer: tokenizer of the rows.
        phrases: phrases, found by their tokens, from the start of a word to the end of one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, phrases: Sequence[str]) -> None:
        super().__init__(word_marks(tokenizer), lengths=(1.0,))
        self.special = torch.tensor(tokenizer.all_special_ids)
        # byte-level tokens differ at the start of a text and after a space
        texts = [text for phrase in phrases for text in (phrase, f" {phrase}")]
        rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        known = {tuple(row) for row in rows if row and tokenizer.unk_token_id not in row}
        self.by_first: dict[int, list[tuple[int, ...]]] = {}
        for row in sorted(known, key=lambda row: (-len(row), row)):
            self.by_first.setdefault(row[0], []).append(row)

    def units(
        self, ids: torch.Tensor, words: list[tuple[int, int]], budget: int
    ) -> list[tuple[int, int]]:
        own, ends = ids.tolist(), {end for _, end in words}
        units: list[tuple[int, int]] = []
        for start, end in words:
            if units and start < units[-1][1]:
                continue  # inside a phrase
            fitting = (size for size in self._found(own, start, ends) if size <= budget)
            units.append((start, start + next(fitting, end - start)))
        return units

    def _found(self, ids: Sequence[int], start: int, ends: Collection[int]) -> list[int]:
        """Return the token counts of the phrases at a position, the longest first."""
        return [
            len(row)
            for row in self.by_first.get(ids[start], [])
            if start + len(row) in ends and tuple(ids[start : start + len(row)]) == row
        ]

    def found(self, ids: Sequence[int], share: float) -> list[bool]:
        """Return for each phrase in a row whether it fits the row's share.

        Args:
            ids: token ids of the row, (seq,).
            share: share of tokens to predict.
        """
        if self.by_first.keys().isdisjoint(ids):
            return []
        row = torch.tensor([ids])
        (words,) = self.words(row, ~torch.isin(row, self.special))
        budget, ends = self.budget(words, share), {end for _, end in words}
        sizes = (size for start, _ in words for size in self._found(ids, start, ends))
        return [size <= budget for size in sizes]


def run_bounds(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the start and the end of each chosen token's run: two of (batch, seq), undefined at
    other tokens.
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
        tokens: mask token, special tokens and size of the vocabulary.
        share: share of ordinary tokens to predict.
        choose: chooser of these tokens.
        whole_runs: mask, replace or keep all tokens of a run of chosen ones together.
    """

    def __init__(
        self,
        tokens: Tokens,
        share: float,
        choose: Chooser = single_tokens,
        whole_runs: bool = False,
    ) -> None:
        self.share = share
        self.choose = choose
        self.whole_runs = whole_runs
        self.mask_token_id = int(tokens.mask_token_id)
        self.vocabulary_size = len(tokens)
        self.special_ids = torch.tensor(tokens.all_special_ids)

    def __call__(
        self, input_ids: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return masked ids and targets, both (batch, seq); NO_LABEL at other tokens."""
        chosen = self.chosen(input_ids, generator)
        draws = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
        words = torch.randint(self.vocabulary_size, input_ids.shape, generator=generator)
        if self.whole_runs:
            draws = draws.gather(1, run_bounds(chosen)[0])
        masked = chosen & (draws < MASKED_SHARE)
        replaced = chosen & (draws >= MASKED_SHARE) & (draws < MASKED_SHARE + RANDOM_SHARE)
        result = input_ids.masked_fill(masked, self.mask_token_id)
        result = torch.where(replaced, words.to(input_ids.device), result)
        return result, input_ids.masked_fill(~chosen, NO_LABEL)

    def masked_batch(self, batch: TensorBatch, generator: torch.Generator) -> TensorBatch:
        """Return a batch with its tokens masked, and its `targets` (batch, seq)."""
        input_ids, targets = self(batch["input_ids"], generator)
        return {**batch, "input_ids": input_ids, "targets": targets}

    def chosen(self, input_ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return the mask of chosen tokens, (batch, seq)."""
        return self.choose(input_ids, self.ordinary(input_ids), self.share, generator)

    def ordinary(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the mask of tokens that are neither special nor padding, (batch, seq)."""
        return ~torch.isin(input_ids, self.special_ids.to(input_ids.device))


BYTE_LEVEL_SPACE = "Ġ"
MARKING_PARTS = ("WordPiece", "ByteLevel", "Metaspace")
"""Types in the `tokenizers` library of the tokenizer parts that mark words."""


@dataclass(frozen=True)
class WordMarks:
    """How the tokens of a vocabulary mark words."""

    marked: torch.Tensor
    """(vocab,), boolean."""
    at_end: bool = False
    """Marked tokens end a word; otherwise, they continue one."""

    def continuing(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mask of tokens that continue a word, (..., seq).

        Args:
            ids: tokens in the order of the text, (..., seq).
        """
        marked = self.marked[ids]
        return functional.pad(~marked, (1, 0))[..., :-1] if self.at_end else marked


def word_marks(tokenizer: PreTrainedTokenizerBase) -> WordMarks:
    """Return how the tokens of a tokenizer mark words.

    WordPiece marks the tokens that continue a word ("##ing"). Byte-level BPE and SentencePiece mark
    those that begin one ("Ġ" and "▁" stand for the space before a word); there, a token of
    punctuation alone begins a word of its own, although no space stands before it. BPE of
    characters marks those that end one ("ing</w>"); a special token, the unknown one included,
    ends one too.

    Raises:
        ModelError: the tokenizer marks neither beginnings, continuations nor ends.
    """
    parts = _tokenizer_parts(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    if parts and (suffix := parts[0].get("end_of_word_suffix")):
        special = set(tokenizer.all_special_tokens)
        ending = [token.endswith(suffix) or token in special for token in tokens]
        return WordMarks(torch.tensor(ending), at_end=True)
    part = next((part for part in parts if part["type"] in MARKING_PARTS), None)
    if part is None:
        kinds = ", ".join(part["type"] for part in parts) or type(tokenizer).__name__
        raise ModelError(
            f"this tokenizer ({kinds}) does not mark where words begin, so that whole words cannot "
            "be masked. Choose an objective that masks single tokens, or a tokenizer of these "
            f"kinds: {', '.join(MARKING_PARTS)}, or BPE with a mark at the end of words."
        )
    if part["type"] == "WordPiece":
        prefix = part["continuing_subword_prefix"]
        return WordMarks(torch.tensor([token.startswith(prefix) for token in tokens]))
    is_bytes = part["type"] == "ByteLevel"
    space = BYTE_LEVEL_SPACE if is_bytes else part["replacement"]
    return WordMarks(
        torch.tensor(
            [
                # in byte-level tokens, a non-ASCII character is part of a longer character
                not token.startswith(space)
                and not (_is_punctuation(token) and (token.isascii() or not is_bytes))
                for token in tokens
            ]
        )
    )


def _tokenizer_parts(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return the descriptions of a tokenizer's model, pre-tokenizers and decoders."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return []
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    parts: list[dict[str, Any]] = []
    for name in ("model", "pre_tokenizer", "decoder"):
        part = description[name] or {"type": "none"}
        # a sequence has its parts in a list
        sequence = part.get("pretokenizers") or part.get("decoders")
        parts += sequence or [part]
    return parts


def _is_punctuation(token: str) -> bool:
    return all(unicodedata.category(letter)[0] in "PS" for letter in token)
