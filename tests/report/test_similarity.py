"""SelfSim, IntraSim and anisotropy, on states made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bertender.report.similarity import Similarities, mean_cosine

EAST, NORTH, WEST = (1.0, 0.0), (0.0, 3.0), (-2.0, 0.0)


def test_the_mean_cosine_of_pairs_follows_from_their_sum() -> None:
    # east and north 0, east and west -1, north and west 0
    total = np.array([1.0, 0.0]) + np.array([0.0, 1.0]) + np.array([-1.0, 0.0])
    assert mean_cosine(total, 3) == pytest.approx(-1 / 3)


def add(found: Similarities, ids: list[int], *layers: list[tuple[float, float]]) -> None:
    found.add(np.array(ids), np.array(layers))


def test_a_word_is_compared_with_itself_in_other_texts() -> None:
    found = Similarities()
    add(found, [7, 7], [EAST, WEST], [EAST, EAST])  # the second is the same context
    add(found, [7], [NORTH], [EAST])
    add(found, [7, 8], [EAST, NORTH], [EAST, NORTH])
    assert found.words(fewest=3) == [7] and found.words(fewest=4) == []
    own = found.self_similarity(fewest=3)
    assert own is not None
    # layer 0: east-north 0, east-east 1, north-east 0; layer 1: all alike
    assert own.tolist() == pytest.approx([1 / 3, 1.0])
    assert found.self_similarity(fewest=4) is None


def test_a_text_is_as_similar_as_its_words_are_to_their_mean() -> None:
    found = Similarities()
    add(found, [1], [EAST])
    assert found.intra_similarity() is None and found.anisotropy is None
    add(found, [1, 2], [(1.0, 0.0), (0.0, 1.0)])
    intra = found.intra_similarity()
    assert intra is not None and intra.tolist() == pytest.approx([2**-0.5])


def test_random_words_of_different_texts_are_the_baseline() -> None:
    found = Similarities()
    for state in (EAST, EAST, WEST):
        add(found, [1], [state])
    anisotropy = found.anisotropy
    # 1, -1, -1
    assert anisotropy is not None and anisotropy.tolist() == pytest.approx([-1 / 3])
    found.add(np.array([], dtype=np.int64), np.empty((1, 0, 2)))
    assert found.texts == 3, "a text of special tokens has no word"
