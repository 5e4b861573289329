"""Token columns, and tokenizers that fit their model."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bertender.tasks.task import Split
from distill.data import fitting_tokenizer, token_dataset
from tests.toy_models import LONGEST, tiny_classifier
from tests.toys import tiny_tokenizer


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A tokenizer that gives segments and states no length, as many on hubs do."""
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("model_type", "names"),
    {
        "bert": ["input_ids", "attention_mask", "token_type_ids"],
        "distilbert": ["input_ids", "attention_mask"],
        "mpnet": ["input_ids", "attention_mask"],
    }.items(),
)
def test_a_fitting_tokenizer_gives_what_the_model_takes(
    tokenizer_folder: Path, model_type: str, names: list[str]
) -> None:
    tokenizer = fitting_tokenizer(str(tokenizer_folder), tiny_classifier(model_type))
    tokenizer.save_pretrained(tokenizer_folder)
    saved = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert sorted(saved("apple")) == sorted(names)
    assert saved.model_max_length == LONGEST


def test_texts_are_cut_where_the_tokenizer_says() -> None:
    split, tokenizer = Split((("apple " * 100,),), (0,)), tiny_tokenizer()
    assert token_dataset(split, tokenizer).lengths == [LONGEST]
    tokenizer.model_max_length = 10
    assert token_dataset(split, tokenizer).lengths == [10]


def test_pairs_become_one_sequence_with_two_segments() -> None:
    columns = token_dataset(Split((("apple", "saw drill"),), (1,)), tiny_tokenizer()).columns
    assert columns["token_type_ids"] == [[0, 0, 0, 1, 1, 1]]
    assert columns["labels"] == (1,)
