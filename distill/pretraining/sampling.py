"""Random segmentation of words in training.

Subword regularisation of a unigram model (Kudo 2018, arXiv 1804.10959, 3.3) and BPE-dropout
(Provilkov et al. 2020, arXiv 1910.13267, section 3). Words are segmented again in every batch, from
the seed and the step. The tokenizer is not changed: held-out rows and later uses of the model have
its deterministic segmentation. Departures: words of a row are segmented, not the text; words with
unknown letters or bytes are unchanged; a row that becomes too long loses the beginning or the end
of its longest segment at random.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Collection, Mapping
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bertender.core.errors import ConfigError
from bertender.text.tokenizer import padding_of
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.steps import LossParts, Objective
from distill.pretraining.config import PretrainConfig
from distill.pretraining.masking import step_generator, word_marks
from distill.pretraining.objectives import HELD_OUT_STEP

BYTE = re.compile("<0x[0-9A-F]{2}>")
"""Pattern of byte tokens, for letters without an entry."""
LONGEST_WORD = 64
"""Most letters of a word to segment; longer words are unchanged."""
REMEMBERED_WORDS = 50_000


class Segmenter(ABC):
    """Random segmentation of words into tokens.

    Args:
        model: model of a tokenizer.json.
        special: tokens that are not part of words.
    """

    def __init__(self, model: Mapping[str, Any], special: Collection[str] = ()) -> None:
        vocabulary = model["vocab"]
        if not isinstance(vocabulary, dict):
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        self.numbers: dict[str, int] = {
            token: number
            for token, number in vocabulary.items()
            if token not in special and not BYTE.fullmatch(token)
        }
        self.tokens = {number: token for token, number in self.numbers.items()}

    def split(self, ids: list[int], draw: Random) -> list[int]:
        """Return a random segmentation of a word.

        Args:
            ids: tokens of the word, none of them special.
            draw: source of random numbers.
        """
        if not all(number in self.tokens for number in ids):
            return ids
        word = "".join(self.tokens[number] for number in ids)
        return (len(word) <= LONGEST_WORD and self.drawn(word, draw)) or ids

    @abstractmethod
    def drawn(self, word: str, draw: Random) -> list[int]:
        """Draw the tokens of a word; empty where its letters are not in the vocabulary."""


class UnigramSegmenter(Segmenter):
    """Draws a segmentation x of a word with P(x)^alpha / sum over all x' of P(x')^alpha.

    That is Kudo's eq. (8) for l = infinity, sampled exactly: forward sums over the places of the
    word, then backward draws. P(x) is the product of the tokens' probabilities.

    Args:
        model: model of a tokenizer.json, with the log probability of each token.
        alpha: 1 samples from P; towards 0, all segmentations become equally likely.
        special: tokens that are not part of words.
    """

    def __init__(
        self, model: Mapping[str, Any], alpha: float, special: Collection[str] = ()
    ) -> None:
        super().__init__(model, special)
        self.weights = {
            token: math.exp(alpha * score)
            for token, score in model["vocab"]
            if token in self.numbers
        }
        self.known: dict[str, list[tuple[list[float], list[tuple[int, int]]]]] = {}

    def drawn(self, word: str, draw: Random) -> list[int]:
        if word not in self.known:
            if len(self.known) >= REMEMBERED_WORDS:
                self.known.clear()
            self.known[word] = self.steps(word)
        steps, place = self.known[word], len(word)
        tokens: list[int] = []
        while place:
            sums, ways = steps[place]
            if not ways:
                return []
            way = min(bisect(sums, draw.random() * sums[-1]), len(ways) - 1)
            place, token = ways[way]
            tokens.append(token)
        return tokens[::-1]

    def steps(self, word: str) -> list[tuple[list[float], list[tuple[int, int]]]]:
        """Return for each position in a word the tokens that end there, as (start, number), and the
        cumulative weights of all segmentations that end with each token."""
        before = [1.0]
        steps: list[tuple[list[float], list[tuple[int, int]]]] = [([], [])]
        for end in range(1, len(word) + 1):
            parts = [
                (start, word[start:end])
                for start in range(end)
                if word[start:end] in self.weights and before[start]
            ]
            sums = [*accumulate(before[start] * self.weights[token] for start, token in parts)]
            steps.append((sums, [(start, self.numbers[token]) for start, token in parts]))
            before.append(sums[-1] if sums else 0.0)
        return steps


class MergeDropout(Segmenter):
    """BPE-dropout: merges the letters of a word like BPE, but skips each merge with a probability.

    Algorithm 1 of the paper: at each step, every possible merge is skipped with probability p, and
    the first of the others in order is made. The word is done when none is left.

    Args:
        model: model of a tokenizer.json, with its merges.
        p: 0 gives the tokenizer's segmentation, 1 single letters.
        special: tokens that are not part of words.
    """

    def __init__(self, model: Mapping[str, Any], p: float, special: Collection[str] = ()) -> None:
        super().__init__(model, special)
        pairs = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
        self.ranks = {(first, second): rank for rank, (first, second) in enumerate(pairs)}
        self.suffix: str = model.get("end_of_word_suffix") or ""
        self.p = p

    def drawn(self, word: str, draw: Random) -> list[int]:
        if self.suffix and not word.endswith(self.suffix):
            return []
        parts = [*word.removesuffix(self.suffix)]
        if not parts:
            return []
        parts[-1] += self.suffix
        while True:
            merges = [
                (self.ranks[pair], place)
                for place, pair in enumerate(pairwise(parts))
                if pair in self.ranks and draw.random() >= self.p
            ]
            if not merges:
                break
            _, place = min(merges)
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        numbers = [self.numbers.get(part) for part in parts]
        return [] if None in numbers else [number for number in numbers if number is not None]


def segmenter_of(tokenizer: PreTrainedTokenizerBase, config: PretrainConfig) -> Segmenter | None:
    """Return the segmenter of the settings; None where they do not set random segmentation.

    Raises:
        ConfigError: the setting is for another kind of tokenizer.
    """
    if config.subword_alpha is None and config.bpe_dropout is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    model = json.loads(backend.to_str())["model"] if backend else {"type": "none"}
    if config.subword_alpha is not None and model["type"] == "Unigram":
        return UnigramSegmenter(model, config.subword_alpha, tokenizer.all_special_tokens)
    if config.bpe_dropout is not None and model["type"] == "BPE":
        return MergeDropout(model, config.bpe_dropout, tokenizer.all_special_tokens)
    names = [each for each in ("subword_alpha", "bpe_dropout") if getattr(config, each) is not None]
    raise ConfigError(
        f"{config.as_set(names)}: the tokenizer is of kind {model['type']}. subword_alpha is for "
        "Unigram, bpe_dropout for BPE. Leave it out, or give another encoder."
    )


class Resegmented:
    """An objective on batches with random segmentation of words, except for held-out rows.

    Args:
        objective: objective on the batches.
        tokenizer: tokenizer of the rows.
        segmenter: segmenter of words.
        seed: seed of the segmentation, combined with the step.
        max_length: most tokens of a row.
    """

    def __init__(
        self,
        objective: Objective,
        tokenizer: PreTrainedTokenizerBase,
        segmenter: Segmenter,
        seed: int,
        max_length: int,
    ) -> None:
        self.objective = objective
        self.marks = word_marks(tokenizer)
        self.special = {*tokenizer.all_special_ids}
        self.segmenter = segmenter
        self.seed = seed
        self.max_length = max_length
        self.padding = TokenDataset({"input_ids": []}, padding_of(tokenizer))

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if step < HELD_OUT_STEP:
            batch = self.resegmented(batch, step)
        return self.objective(model, batch, step)

    def resegmented(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return a batch with other tokens of the same words, (batch, seq) of another length."""
        seed = int(torch.randint(2**62, (), generator=step_generator(self.seed, step)))
        draw = Random(seed)  # noqa: S311  # not for cryptography
        ids, mask = batch["input_ids"].cpu(), batch["attention_mask"].cpu().bool()
        types = batch["token_type_ids"].cpu() if "token_type_ids" in batch else None
        rows = []
        for row, real in enumerate(mask):
            own = ids[row][real]
            segments = [0] * len(own) if types is None else types[row][real].tolist()
            tokens = self.shortened(self.row(own, segments, draw), draw)
            columns = {"input_ids": [token for token, _ in tokens]}
            columns["attention_mask"] = [1] * len(tokens)
            if types is not None:
                columns["token_type_ids"] = [segment for _, segment in tokens]
            rows.append(columns)
        device = batch["input_ids"].device
        padded = self.padding.collate(rows)
        return {**batch, **{name: each.to(device) for name, each in padded.items()}}

    def row(self, ids: torch.Tensor, segments: list[int], draw: Random) -> list[tuple[int, int]]:
        """Return the tokens of a row with randomly segmented words, and the segment of each token.

        Args:
            ids: (seq,), without padding.
            segments: segment of each token.
            draw: source of random numbers.
        """
        continuing = self.marks.continuing(ids).tolist()
        tokens: list[tuple[int, int]] = []
        word: list[int] = []
        for place, token in enumerate([*ids.tolist(), None]):
            if word and (token is None or token in self.special or not continuing[place]):
                segment = segments[place - 1]
                tokens += [(part, segment) for part in self.segmenter.split(word, draw)]
                word = []
            if token is None:
                break
            if token in self.special:
                tokens.append((token, segments[place]))
            else:
                word.append(token)
        return tokens

    def shortened(self, tokens: list[tuple[int, int]], draw: Random) -> list[tuple[int, int]]:
        """Return at most `max_length` tokens: the longest segments lose their ends."""
        while (beyond := len(tokens) - self.max_length) > 0:
            bounds = [place for place, (token, _) in enumerate(tokens) if token in self.special]
            runs = pairwise([-1, *bounds, len(tokens)])
            before, after = max(runs, key=lambda run: run[1] - run[0])
            count = min(beyond, max(1, after - before - 2))
            start = before + 1 if draw.random() < 0.5 else after - count
            tokens = tokens[:start] + tokens[start + count :]
        return tokens
