"""Tokens are compared before logits: what a tokenizer does otherwise is found on any text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.faults import FAULTS
from bertender.core.artifact import Artifact
from bertender.gate.cases import input_problems
from bertender.models.classifier import Classifier, open_classifier
from bertender.text.batch import Tokenize
from distill.pretraining.vocabularies import train_wordpiece
from tests.fake_classifier import fake_classifier

PAIRS = [("apple pear " * 20, "saw"), ("plum", "drill hammer")]
OF_TOKENS = (
    "truncated at 16 tokens",
    "tokenizer of another case",
    "texts of a pair swapped",
)


@pytest.fixture(scope="module")
def sound(teacher: Artifact) -> Classifier:
    return open_classifier(teacher)


def test_the_same_tokenizer_reads_the_same(sound: Classifier) -> None:
    assert input_problems(sound, sound, PAIRS) == []


@pytest.mark.parametrize("name", OF_TOKENS)
def test_another_reading_is_named_with_its_first_text(name: str, sound: Classifier) -> None:
    plant = FAULTS[name].classifier
    assert plant is not None
    (problem,) = input_problems(sound, plant(sound), PAIRS)
    assert problem.startswith("inputs: input_ids of") and "of 3 texts" in problem


def test_another_case_is_found_where_every_text_is_in_lower_case(sound: Classifier) -> None:
    plant = FAULTS["tokenizer of another case"].classifier
    assert plant is not None
    (problem,) = input_problems(sound, plant(sound), [("apple",)])
    assert "APPLE" in problem


def test_other_vocabularies_and_models_of_text_are_not_compared(sound: Classifier) -> None:
    other = replace(sound, encode=Tokenize(train_wordpiece(["other words"] * 50, 100, 64)))
    assert input_problems(sound, other, PAIRS) == []
    assert input_problems(sound, fake_classifier(), PAIRS) == []
    assert input_problems(sound, sound, []) == []
