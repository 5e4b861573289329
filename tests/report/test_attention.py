"""Patterns of attention, on maps made by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from bertender.report.attention import (
    PATTERNS,
    attention_on,
    beyond_uniform,
    is_punctuation,
    patterns,
    texts_of,
)

SIZE = 10
ONE_TEXT = np.zeros(SIZE, dtype=np.int64)
PAIR = np.repeat([0, 1], SIZE // 2)
UNIFORM = np.full((SIZE, SIZE), 1 / SIZE)
TO_FIRST = np.zeros((SIZE, SIZE))
TO_FIRST[:, 0] = 1.0
TO_ENDS = np.zeros((SIZE, SIZE))
TO_ENDS[:, [0, -1]] = 0.5
TO_ITSELF = np.eye(SIZE)
TO_PREVIOUS = np.eye(SIZE, k=-1)
TO_PREVIOUS[0, 0] = 1.0
IN_ITS_TEXT = np.kron(np.eye(2), np.full((SIZE // 2, SIZE // 2), 2 / SIZE))


def named(attention: npt.NDArray[np.float64], texts: npt.NDArray[np.int64] = ONE_TEXT) -> str:
    (found,) = patterns(attention[None], texts).tolist()
    return PATTERNS[found]


@pytest.mark.parametrize(
    ("attention", "pattern"),
    [
        (UNIFORM, "heterogeneous"),
        (TO_FIRST, "vertical"),
        (TO_ENDS, "vertical"),
        (TO_ITSELF, "diagonal"),
        (TO_PREVIOUS, "diagonal"),
        (0.5 * TO_ENDS + 0.5 * TO_PREVIOUS, "vertical + diagonal"),
        (0.6 * UNIFORM + 0.4 * TO_PREVIOUS, "heterogeneous"),
        (0.4 * UNIFORM + 0.6 * TO_PREVIOUS, "diagonal"),
    ],
)
def test_a_map_has_the_pattern_that_most_of_it_has(
    attention: npt.NDArray[np.float64], pattern: str
) -> None:
    assert np.allclose(attention.sum(axis=-1), 1)
    assert named(attention) == pattern


def test_a_block_is_of_a_pair_of_texts() -> None:
    assert named(IN_ITS_TEXT, PAIR) == "block"
    assert named(IN_ITS_TEXT) == "heterogeneous"
    assert named(UNIFORM, PAIR) == "heterogeneous"
    assert named(TO_FIRST, PAIR) == "vertical"


def test_shares_are_counted_from_uniform_attention() -> None:
    column = np.zeros((1, 4, 4), dtype=bool)
    column[:, :, 0] = True
    half = np.full((1, 4, 4), 1 / 6)
    half[:, :, 0] = 0.5
    # uniform attention has 1/4 there, and this 1/2: a third of the 3/4 that are left
    assert beyond_uniform(half, column)[0] == pytest.approx(1 / 3)
    assert beyond_uniform(np.full((1, 4, 4), 0.25), column)[0] == pytest.approx(0.0)
    assert beyond_uniform(half, np.ones_like(column))[0] == 0.0, "nothing is beyond all"


def test_attention_on_kinds_of_tokens_is_the_mean_over_tokens() -> None:
    attention = np.array([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]]])
    kinds = {"first": np.array([True, False, False]), "others": np.array([False, True, True])}
    found = attention_on(attention, kinds)
    assert found["first"].tolist() == pytest.approx([0.2])
    assert found["others"].tolist() == pytest.approx([0.8])


def test_texts_end_at_the_first_separator() -> None:
    separators = [False, False, True, True, False, True]
    assert texts_of(np.array(separators)).tolist() == [0, 0, 0, 1, 1, 1]
    assert texts_of(np.zeros(3, dtype=bool)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("token", "is_one"),
    [(".", True), ("##,", True), ("\u0120\u2019", True), ("#", True), ("a.", False), ("$", False)],
)
def test_punctuation_is_known_behind_marks_of_tokenizers(token: str, is_one: bool) -> None:
    assert is_punctuation(token) is is_one
