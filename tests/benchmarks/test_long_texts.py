"""Long texts: as many tokens as the encoder takes, made of the task's own words."""

from __future__ import annotations

import pytest

from benchmarks.common.long_texts import LONG_TOKENS, long_texts
from bertender.core.errors import DataError
from bertender.measure.accuracy import text_lengths
from bertender.tasks.task import Task
from bertender.text.batch import Tokenize
from tests.toys import tiny_tokenizer


def test_each_fills_the_longest_input(task: Task) -> None:
    encode = Tokenize(tiny_tokenizer(), 64)
    texts = long_texts(task.dev.examples, encode, 3)
    assert list(text_lengths(encode, texts)) == [64] * 3
    assert len(set(texts)) == 3
    first = task.dev.examples[0][0]
    assert texts[0][0].startswith(first) and len(texts[0][0]) > len(first)


def test_nothing_is_made_of_nothing() -> None:
    encode = Tokenize(tiny_tokenizer(), 64)
    with pytest.raises(DataError, match="0 texts of 64 tokens could be made, and 2 are required"):
        long_texts([("",)], encode, 2)


def test_a_few_short_texts_are_enough(task: Task) -> None:
    encode = Tokenize(tiny_tokenizer(), LONG_TOKENS)
    full = max(text_lengths(encode, [("word " * 2 * LONG_TOKENS,)]))
    for examples in ([("saw",)], [("saw", "drill"), ("a", "b c")]):
        texts = long_texts(examples, encode, 2)
        assert list(text_lengths(encode, texts)) == [full] * 2
        assert {len(text) for text in texts} == {len(examples[0])}
