"""Unigram language model of words (Kudo 2018, arXiv 1804.10959, 3.2): its tokens, estimated by EM.

All words are segmented at once, in flat arrays, and in the same order on every run.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

LONGEST_TOKEN = 16
SEEDS_AN_ENTRY = 10
REMAINING_SHARE = 0.75
EM_STEPS = 2
FEWEST_EXPECTED = 0.5
"""No token is thought rarer than this, so that every word keeps a segmentation."""
DECIMALS = 6
"""Of the log probabilities: the digits that every machine agrees on."""
TINY = 1e-300
"""Stands for the probability of what no other tokens make."""

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def estimate_tokens(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """Return the tokens that explain words best, likeliest first, with their log probabilities.

    Kudo 2018, arXiv 1804.10959, 3.2: P(word) is the sum over its segmentations x of the product of
    p(x_i), eq. (1). Seeds are the letters and the substrings with the highest count times length.
    Then, until few enough are left: estimate p by EM over all segmentations of the words (with
    SentencePiece's sparse prior, the exponential of digamma for the counts), and drop the quarter
    of the tokens that is missed least.
    Departure: the loss of a token is its expected count times log p(token) - log P(token without
    itself), from all its other segmentations; the paper divides the corpus anew, SentencePiece
    takes the second-best segmentation alone.
    The trainer of the `tokenizers` library estimates the same, but visits the words in an order
    that changes from run to run, and with it the last digits of the sums, and the order of tokens.

    Args:
        words: how often each occurs.
        size: the most tokens; every letter of the words is one, so more than there are letters.
    """
    occurrences = _substrings(words)
    letters = sorted(token for token in occurrences if len(token) == 1)
    tokens = [*letters, *_seeds(occurrences, most=SEEDS_AN_ENTRY * size)]
    numbers = {token: number for number, token in enumerate(tokens)}
    lattice, alone = Lattice(list(words), numbers), Lattice(tokens, numbers, whole=False)
    counts = np.array(list(words.values()), dtype=float)
    expected = np.array([occurrences[token] for token in tokens], dtype=float)
    left = np.arange(len(tokens))
    while True:
        for _ in range(EM_STEPS):
            p = _probabilities(expected, left)
            expected = lattice.expected_counts(p, counts)
        if len(left) <= size:
            break
        loss = expected[left] * np.log(p[left] / np.maximum(alone.probabilities(p)[left], TINY))
        loss[: len(letters)] = np.inf  # nothing can stand in for a letter
        most = max(size, int(REMAINING_SHARE * len(left)))
        left = np.sort(left[np.argsort(-loss, kind="stable")[:most]])
        lattice.keep(left)
        alone.keep(left)
    scores = np.round(np.log(p[left]), DECIMALS).tolist()
    ranked = zip((tokens[number] for number in left), scores, strict=True)
    return sorted(ranked, key=lambda entry: (-entry[1], entry[0]))


class Lattice:
    """Every segmentation of some words into tokens, in flat arrays.

    A word of n letters has nodes 0 to n, between its letters; an edge is a token between two. All
    arrays of edges are sorted by the place of their end within the word, so that each place is
    one step for all words together.
    """

    def __init__(self, words: Sequence[str], tokens: Mapping[str, int], whole: bool = True) -> None:
        """Lay out the edges.

        Args:
            words: what to segment; every single letter of them is a token.
            tokens: their numbers.
            whole: whether a word that is a token may be its own segmentation.
        """
        self.sizes = np.array([len(word) + 1 for word in words])
        self.last = np.cumsum(self.sizes) - 1
        flat = array("i")
        for word, last in zip(words, self.last.tolist(), strict=True):
            first = last - len(word)
            for start in range(len(word)):
                for end in range(start + 1, min(start + LONGEST_TOKEN, len(word)) + 1):
                    token = tokens.get(word[start:end])
                    if token is not None and (whole or end - start < len(word)):
                        flat.extend((end, first + start, first + end, token))
        edges = np.array(flat, dtype=np.int32).reshape(-1, 4)
        self.edges = edges[np.argsort(edges[:, 0], kind="stable")].T.copy()

    def keep(self, tokens: Numbers) -> None:
        """Drop the edges of all other tokens."""
        self.edges = self.edges[:, np.isin(self.edges[3], tokens)]

    def probabilities(self, p: Floats) -> Floats:
        """Return P of each word, from p (tokens): the sum over all of its segmentations."""
        return np.asarray(self._forward(p)[self.last])

    def expected_counts(self, p: Floats, counts: Floats) -> Floats:
        """Return how often each token occurs, expected over the segmentations of all words."""
        _, start, end, token = self.edges
        forward, backward = self._forward(p), self._backward(p)
        scale = np.repeat(counts / forward[self.last], self.sizes)
        weights = forward[start] * p[token] * backward[end] * scale[start]
        return np.asarray(np.bincount(token, weights, len(p)), dtype=np.float64)

    def _forward(self, p: Floats) -> Floats:
        """Return for each node the probability of what stands before it in the word."""
        result = np.zeros(self.last[-1] + 1)
        result[self.last - self.sizes + 1] = 1
        for step in self._steps():
            _, start, end, token = self.edges[:, step]
            result += np.bincount(end, result[start] * p[token], len(result))
        return result

    def _backward(self, p: Floats) -> Floats:
        """Return for each node the probability of what stands after it in the word."""
        result = np.zeros(self.last[-1] + 1)
        result[self.last] = 1
        for step in reversed(self._steps()):
            _, start, end, token = self.edges[:, step]
            result += np.bincount(start, result[end] * p[token], len(result))
        return result

    def _steps(self) -> list[slice]:
        """Return the edges that end at place 1 of their words, at place 2, and so on."""
        places = np.arange(1, self.sizes.max() + 1)
        bounds = np.searchsorted(self.edges[0], places).tolist()
        return [slice(*bound) for bound in pairwise(bounds)]


def _probabilities(expected: Floats, left: Numbers) -> Floats:
    """Return p of each token from its expected count; 0 for those that were removed."""
    counts = np.maximum(expected[left], FEWEST_EXPECTED)
    p = np.zeros(len(expected))
    p[left] = np.exp(digamma(counts) - digamma(counts.sum()))
    return p


def _substrings(words: Mapping[str, int]) -> Counter[str]:
    """Count every substring of the words that may be a token."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 1, min(start + LONGEST_TOKEN, len(word)) + 1):
                counts[word[start:end]] += count
    return counts


def _seeds(occurrences: Mapping[str, int], most: int) -> list[str]:
    """Return the longer substrings of the highest count times length.

    Those that occur only within one longer substring are left out, and those that occur once.
    """
    within: set[str] = set()
    for token, count in occurrences.items():
        within.update(part for part in (token[1:], token[:-1]) if occurrences.get(part) == count)
    free = (token for token in occurrences.keys() - within if len(token) > 1)
    repeated = (token for token in free if occurrences[token] > 1)
    return sorted(repeated, key=lambda token: (-occurrences[token] * len(token), token))[:most]
