"""The longest input of a model that is trained: given, or chosen from its texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from transformers import BertConfig, PreTrainedTokenizerBase, RobertaConfig

from bertender.core.errors import ConfigError
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import longest_input
from bertender.training.examples import (
    cut_at,
    length_findings,
    token_dataset,
    usual_length,
)
from tests.toy_tagging import TASK
from tests.toys import tiny_tokenizer

SPECIAL = 2
"""[CLS] and [SEP]."""


def of_lengths(task: Task, *words: int) -> Task:
    """A task whose training texts have so many words, each a token."""
    split = Split(tuple(("apple " * count,) for count in words), (0,) * len(words))
    return replace(task, train=split)


def long_reader(limit: int = 512) -> PreTrainedTokenizerBase:
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = limit
    return tokenizer


@pytest.mark.parametrize(
    ("words", "limit", "longest"),
    [
        ([5] * 100, 512, 128),
        ([200] * 100, 512, 208),  # 202 tokens
        ([10] * 95 + [200] * 5, 512, 208),
        ([10] * 199 + [500], 512, 128),  # one in 200 is beyond the percentile
        ([700] * 100, 512, 512),
        ([5] * 100, 64, 64),
    ],
)
def test_the_default_leaves_99_of_100_texts_whole(
    task: Task, words: list[int], limit: int, longest: int
) -> None:
    assert usual_length([of_lengths(task, *words)], long_reader(limit)) == longest


def test_of_several_tasks_the_longer_texts_count(task: Task) -> None:
    tasks = [of_lengths(task, *[5] * 9), of_lengths(task, *[300] * 9)]
    assert usual_length(tasks, long_reader()) == 304


def test_words_are_counted_in_tokens() -> None:
    sentence = ("98765432",) * 60  # several tokens each
    pieces = len(tiny_tokenizer().tokenize("98765432"))
    task = replace(TASK, train=Split((sentence,), ((0,) * 60,)))
    assert usual_length([task], long_reader(2048)) == -(-(60 * pieces + SPECIAL) // 8) * 8


def test_a_tokenizer_is_cut_at_what_the_model_has_positions_for() -> None:
    config, whole = BertConfig(max_position_embeddings=40), tiny_tokenizer()
    assert longest_input(cut_at(whole, 40, config)) == 40 and longest_input(whole) == 64
    with pytest.raises(ConfigError, match="max_length=41: the model has positions for 40 tokens"):
        cut_at(whole, 41, config)
    roberta = RobertaConfig(max_position_embeddings=40, pad_token_id=1)
    with pytest.raises(ConfigError, match="positions for 38 tokens"):
        cut_at(whole, 39, roberta)


def test_texts_that_are_cut_are_counted(task: Task) -> None:
    task = replace(of_lengths(task, 3, 62, 63, 98), dev=Split((("apple",),), (0,)))
    found = length_findings(task, tiny_tokenizer())
    assert found.lines() == [
        "2 of 4 training texts are longer than 64 tokens and were cut; the longest has 100"
    ]
    assert (found.held_out.longer, found.held_out.longest) == (0, 3)


def test_texts_that_are_cut_are_said_before_they_are_learned(
    task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    """8 tokens are read of 12, and of 22; 8 is not too many."""
    tokenizer = long_reader(8)
    token_dataset(of_lengths(task, 3, 6, 10, 20).train, tokenizer)
    said = "2 of 4 training texts are longer than 8 tokens and are cut: the longest has 22"
    assert said in caplog.text
    assert f"{100 * 18 / (5 + 8 + 12 + 22):.1f} % of all tokens are not read" in caplog.text
    caplog.clear()
    token_dataset(of_lengths(task, 3, 6).train, tokenizer)
    assert not caplog.text


@pytest.mark.parametrize(
    ("problem", "examples", "labels"),
    [
        ("sentence_embedding", (("apple", "apple " * 10), ("apple", "pear")), (1.0, 2.0)),
        ("multiple_choice", (("apple", "pear", "apple " * 8), ("apple", "pear", "plum")), (0, 1)),
        ("ranking", (("apple", "apple " * 8), ("apple", "pear", "plum")), ((1.0,), (1.0, 0.0))),
    ],
)
def test_examples_of_several_rows_that_are_cut_are_said_too(
    problem: str, examples: tuple[tuple[str, ...], ...], labels: Any, caplog: Any
) -> None:
    """Of each, the longest row of the first has 12 tokens, and no row of the second is cut."""
    token_dataset(Split(examples, labels), long_reader(8), problem)
    said = "1 of 2 training examples are longer than 8 tokens and are cut: the longest has 12"
    assert said in caplog.text
    caplog.clear()
    token_dataset(Split(examples[1:], labels[1:]), long_reader(8), problem)
    assert not caplog.text
