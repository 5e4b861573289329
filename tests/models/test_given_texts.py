"""Texts and numbers that a program gives: the rules are those of files and commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.reading import checked_examples
from tests.comparison.test_calibration import sure_model
from tests.distill.architectures import save_teacher
from tests.toy_kinds import ALL, NAMED

UNUSABLE = {
    "empty": "",
    "blank": " \n",
    "invisible": "\u200b",
    "NUL": "apple\0",
    "a lone surrogate": "apple \ud83d",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_text_that_no_file_may_have_is_refused(name: str, teacher: Artifact) -> None:
    model, scorer = bertender.open_model(teacher), bertender.Scorer(teacher)
    for texts in ([("apple",), (UNUSABLE[name],)], ["apple", UNUSABLE[name]]):
        for predict in (model.logits, model.outputs, scorer):
            with pytest.raises(DataError, match=r"row 1: .*(empty|visible|not text)"):
                predict(texts)  # type: ignore[operator]


def test_rows_of_other_numbers_of_texts_are_refused(teacher: Artifact) -> None:
    """A model that records no data may read pairs, but the same number in each row."""
    model = bertender.open_model(teacher)
    assert len(model.logits([("apple", "saw")])) == 1
    with pytest.raises(DataError, match=r"row 1 has 2 texts, and the model reads 1 an example\."):
        model.logits([("apple",), ("apple", "saw")])
    task = teacher.card.task.model_copy(update={"source": {"train": "train.csv"}})
    known = bertender.open_model(
        replace(teacher, card=teacher.card.model_copy(update={"task": task}))
    )
    with pytest.raises(DataError, match=r"row 0 has 2 texts.*Give one text a row"):
        known.logits([("apple", "saw")])


@pytest.mark.parametrize("texts", [[], (), iter(())])
def test_no_text_is_refused(texts: Any, teacher: Artifact) -> None:
    with pytest.raises(DataError, match="no text to predict"):
        bertender.open_model(teacher).logits(texts)


def test_texts_may_come_one_by_one(teacher: Artifact) -> None:
    assert len(bertender.open_model(teacher).logits(iter(["apple", "saw"]))) == 2  # type: ignore[arg-type]


def test_white_space_around_a_text_counts_nowhere(tmp_path: Path) -> None:
    """A byte-level tokenizer would read it: a request would get another answer than a file."""
    model = AutoModelForSequenceClassification
    folder = save_teacher("roberta", tmp_path / "teacher", model)
    opened, scorer = bertender.open_model(folder), bertender.Scorer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("apple\n")["input_ids"] != tokenizer("apple")["input_ids"]
    alone, spaced = (opened.logits([text]) for text in ("apple", "  apple\n"))
    np.testing.assert_array_equal(alone, spaced)
    assert scorer(["apple"]) == scorer(["  apple\n"])
    assert QUESTION_ANSWERING.to_example((" who? \n", " apple ")) == ("who?", " apple ")
    batch = opened.encode([opened.problem.to_example((" apple ",))])
    assert batch.arrays["input_ids"].tolist() == [tokenizer("apple")["input_ids"]]


def test_a_sentence_is_its_words(tmp_path: Path) -> None:
    task = NAMED["token_classification"]
    model = bertender.open_model(sure_model(task, tmp_path / "tagger"))
    words = next(example for example in task.dev.examples if len(example) > 1)
    (sentence,), (alike,) = model.outputs([" ".join(words)]), model.outputs([words])
    np.testing.assert_array_equal(sentence.logits, alike.logits)
    assert len(sentence.logits) == len(words)


@pytest.mark.parametrize("name", [*ALL, "pairs"])
def test_examples_of_each_kind_are_taken_and_others_not(name: str) -> None:
    task = NAMED[name]
    problem, columns = task.problem, len(task.text_columns)
    examples = problem.asked(task.dev.examples[:4])
    assert checked_examples(examples, problem, columns) == [*examples]
    assert checked_examples(iter(examples), problem, None) == [*examples]
    fewest, most = problem.text_counts(columns)
    for count in {fewest - 1, *(() if most is None else (most + 1,))}:
        with pytest.raises(DataError, match=rf"row 0 has {count} texts?, and the model reads"):
            checked_examples([("apple",) * count], problem, columns)


SETTINGS: Iterable[dict[str, int]] = ({"max_length": 0}, {"max_length": -5}, {"threads": -1})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_numbers_that_the_command_refuses_are_refused(
    settings: dict[str, Any], teacher: Artifact
) -> None:
    said = r"=-?\d: allowed is [01] or more"
    with pytest.raises(ConfigError, match=said):
        bertender.open_model(teacher, **settings)
    with pytest.raises(ConfigError, match=said):
        bertender.Scorer(teacher, **settings)(["apple"])


def test_sizes_of_batches_are_positive(teacher: Artifact) -> None:
    with pytest.raises(ConfigError, match="tokens_per_batch=0: allowed is 1"):
        bertender.Scorer(teacher, tokens_per_batch=0)
    for settings in ({"batch_size": 0}, {"retries": -1}):
        with pytest.raises(ConfigError, match="allowed is"):
            bertender.classify(["apple"], "http://127.0.0.1:9", **settings)  # type: ignore[arg-type]
