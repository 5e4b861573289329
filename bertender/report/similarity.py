"""Contextuality of hidden states by layer (Ethayarajh 2019, arXiv 1909.00512, section 3).

SelfSim of a word is the average cosine similarity of its states in all pairs of different texts
(definition 1), IntraSim of a text that of its words' states with their mean (definition 2). Both
are adjusted for anisotropy (section 3.4): the average cosine similarity of words drawn at random
from different texts is subtracted. A word is a token here, special ones left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

FEWEST_CONTEXTS = 5
"""Number of texts that a word must be in, as in the paper."""
SMALLEST = 1e-12


def unit(states: FloatArray) -> FloatArray:
    """Return vectors (..., hidden) of length 1."""
    lengths = np.linalg.norm(states, axis=-1, keepdims=True)
    return np.asarray(states / np.maximum(lengths, SMALLEST))


def mean_cosine(total: FloatArray, count: int) -> FloatArray:
    """Return the mean cosine similarity over all pairs of some vectors of length 1.

    Their sum has the squared length count + 2 * (sum over pairs).

    Args:
        total: sum of the vectors (..., hidden).
        count: number of vectors, at least 2.
    """
    return np.asarray((np.square(total).sum(axis=-1) - count) / (count * (count - 1)))


@dataclass
class Similarities:
    """Sums for SelfSim, IntraSim and anisotropy, text by text."""

    seed: int = 0
    totals: dict[int, FloatArray] = field(default_factory=dict)
    """Token -> sum of its unit states, (layers, hidden), once per text."""
    contexts: dict[int, int] = field(default_factory=dict)
    """Token -> number of texts with it."""
    intra: list[FloatArray] = field(default_factory=list)
    """IntraSim of each text, (layers,)."""
    drawn: FloatArray | None = None
    """Sum of one unit state of each text, (layers, hidden)."""
    texts: int = 0

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)

    def add(self, ids: npt.NDArray[np.int64], states: FloatArray) -> None:
        """Add a text.

        Args:
            ids: ids of its tokens (seq,), without special ones.
            states: (layers, seq, hidden).
        """
        if not len(ids):
            return
        directions = unit(states)
        _, firsts = np.unique(ids, return_index=True)
        for place in firsts.tolist():
            token = int(ids[place])
            self.totals[token] = self.totals.get(token, 0.0) + directions[:, place]
            self.contexts[token] = self.contexts.get(token, 0) + 1
        one = directions[:, int(self.generator.integers(len(ids)))]
        self.drawn = one if self.drawn is None else self.drawn + one
        self.texts += 1
        if len(ids) > 1:
            middle = unit(states.mean(axis=1, keepdims=True))
            self.intra.append((directions * middle).sum(axis=-1).mean(axis=-1))

    @property
    def anisotropy(self) -> FloatArray | None:
        """Mean cosine of random words from different texts, (layers,); None for fewer than two
        texts."""
        if self.drawn is None or self.texts < 2:
            return None
        return mean_cosine(self.drawn, self.texts)

    def words(self, fewest: int = FEWEST_CONTEXTS) -> list[int]:
        """Return the tokens that are in at least `fewest` texts."""
        return [token for token, count in self.contexts.items() if count >= max(fewest, 2)]

    def self_similarity(self, fewest: int = FEWEST_CONTEXTS) -> FloatArray | None:
        """Return the mean SelfSim of words in at least `fewest` texts, (layers,), not adjusted;
        None without such words."""
        words = self.words(fewest)
        if not words:
            return None
        own = [mean_cosine(self.totals[word], self.contexts[word]) for word in words]
        return np.asarray(np.mean(own, axis=0))

    def intra_similarity(self) -> FloatArray | None:
        """Return the mean IntraSim of the texts, (layers,), not adjusted; None without texts."""
        return np.asarray(np.mean(self.intra, axis=0)) if self.intra else None
