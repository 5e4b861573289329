"""The unigram model's estimation, against segmentations that are listed one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distill.pretraining.vocabularies import Lattice, estimate_tokens

PIECES = ["a", "b", "c", "ab", "bc", "abc", "aa"]
NUMBERS = {token: number for number, token in enumerate(PIECES)}


def segmentations(word: str, whole: bool = True) -> Iterator[list[str]]:
    """Every way to put a word together from PIECES."""
    if not word:
        yield []
    for token in PIECES:
        if word.startswith(token) and (whole or token != word):
            yield from ([token, *rest] for rest in segmentations(word[len(token) :]))


def likelihood(tokens: list[str], p: np.ndarray) -> float:
    return math.prod(p[NUMBERS[token]] for token in tokens)


@settings(max_examples=60)
@given(
    words=st.lists(st.text("abc", min_size=1, max_size=7), min_size=1, max_size=5, unique=True),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_all_segmentations_are_summed(words: list[str], whole: bool, seed: int) -> None:
    generator = np.random.default_rng(seed)
    p, counts = generator.dirichlet(np.ones(len(PIECES))), generator.integers(1, 9, len(words))
    lattice = Lattice(words, NUMBERS, whole)
    sums = [sum(likelihood(x, p) for x in segmentations(word, whole)) for word in words]
    assert lattice.probabilities(p) == pytest.approx(sums)
    if whole:
        expected = np.zeros(len(PIECES))
        for word, count, total in zip(words, counts, sums, strict=True):
            for tokens in segmentations(word):
                for token in tokens:
                    expected[NUMBERS[token]] += count * likelihood(tokens, p) / total
        assert lattice.expected_counts(p, counts.astype(float)) == pytest.approx(expected)


def test_without_some_pieces_their_segmentations_are_gone() -> None:
    p = np.full(len(PIECES), 0.1)
    lattice = Lattice(["abc"], NUMBERS)
    assert lattice.probabilities(p) == pytest.approx([0.1**3 + 2 * 0.1**2 + 0.1])
    lattice.keep(np.array([NUMBERS[token] for token in ("a", "b", "c", "bc")]))
    assert lattice.probabilities(p) == pytest.approx([0.1**3 + 0.1**2])


STEMS = ("walk", "jump", "print", "gather", "climb", "shout", "wonder", "paint", "collect", "load")
ENDINGS = ("ing", "ed", "er", "s", "able", "ation", "less", "ness")
WORDS = {
    f"▁{stem}{ending}": 1 + (7 * row + 3 * column) % 5
    for row, stem in enumerate(STEMS)
    for column, ending in enumerate(ENDINGS)
}
LETTERS = {letter for word in WORDS for letter in word}


def test_it_finds_the_parts_that_words_are_made_of() -> None:
    tokens = {token for token, _ in estimate_tokens(WORDS, len(LETTERS) + 20)}
    longer_endings = {ending for ending in ENDINGS if len(ending) > 1}
    assert {*LETTERS, *(f"▁{stem}" for stem in STEMS), *longer_endings} < tokens


@pytest.mark.parametrize("size", [25, 40, 1000])
def test_pieces_are_ranked_and_their_probabilities_sum_to_one_at_most(size: int) -> None:
    """Less than one by what the sparse prior takes from rare pieces."""
    tokens = estimate_tokens(WORDS, size)
    scores = [score for _, score in tokens]
    assert len(tokens) <= size and scores == sorted(scores, reverse=True)
    assert {token for token, _ in tokens} >= LETTERS
    assert 0.5 < sum(map(math.exp, scores)) <= 1
    assert tokens == estimate_tokens(dict(WORDS), size)


def test_more_pieces_explain_words_better() -> None:
    def cost(size: int) -> float:
        tokens = dict(estimate_tokens(WORDS, size))
        numbers = {token: number for number, token in enumerate(tokens)}
        p = np.exp(np.array(list(tokens.values())))
        likelihoods = Lattice(list(WORDS), numbers).probabilities(p / p.sum())
        return -float(np.log(likelihoods) @ np.array(list(WORDS.values())))

    costs = [cost(size) for size in (len(LETTERS), 30, 40, 60, 80)]
    assert costs == sorted(costs, reverse=True)


def test_a_piece_that_others_make_as_well_is_the_first_to_go() -> None:
    """Without "▁walk", four words would need other pieces; "▁wal" is part of it and of no other."""
    tokens = {token for token, _ in estimate_tokens(WORDS, len(LETTERS) + 20)}
    assert "▁walk" in tokens and "▁wal" not in tokens and "alk" not in tokens
