"""Scores of answers: the figures of SQuAD's script, and questions without an answer apart."""

from __future__ import annotations

import pytest

from bertender.metrics import paired_change, score
from bertender.metrics.answers import normalised, word_f1

PARIS = (("Paris", 10), ("the city of Paris", 0))
NAMES = ("answer_match", "answer_f1", "answered_match", "answered_f1", "unanswered_accuracy")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("An apple, a pear\nand the plum", "apple pear and plum"),
        ("Theatre", "theatre"),
        ("the", ""),
    ],
)
def test_texts_are_compared_without_case_punctuation_and_articles(text: str, plain: str) -> None:
    assert normalised(text) == plain


def test_f1_counts_shared_words() -> None:
    assert word_f1("city of Rome", "the city of Paris") == pytest.approx(2 / 3)
    assert word_f1("a a b b", "b b b c") == pytest.approx(2 * 2 / (2 + 4)), "articles are no words"
    assert word_f1("the", "") == word_f1("", "the") == 1.0
    assert word_f1("", "Paris") == 0.0


@pytest.mark.parametrize(
    ("predicted", "match", "f1"),
    [
        ((("paris.", 10),), 1.0, 1.0),
        ((("City of Paris", 3),), 1.0, 1.0),
        ((("of Paris", 8),), 0.0, 0.8),
        ((("Rome", 8),), 0.0, 0.0),
        ((), 0.0, 0.0),
    ],
)
def test_the_nearest_true_answer_counts(predicted: object, match: float, f1: float) -> None:
    found = [score(name, [PARIS], [predicted]).value for name in ("answer_match", "answer_f1")]
    assert found == pytest.approx([match, f1])


def test_questions_without_an_answer_are_scored_apart() -> None:
    truth = [PARIS, PARIS, (), ()]
    predictions = [(("Paris", 10),), (), (), (("Rome", 0),)]
    found = {name: score(name, truth, predictions).value for name in NAMES}
    assert found == {
        "answer_match": 0.5,
        "answer_f1": 0.5,
        "answered_match": 0.5,
        "answered_f1": 0.5,
        "unanswered_accuracy": 0.5,
    }
    never = [(("Paris", 10),)] * 4
    assert score("unanswered_accuracy", truth, never).value == 0.0
    assert score("answered_match", truth, never).value == 1.0
    assert score("unanswered_accuracy", [PARIS], [PARIS[:1]]).undefined is not None


def test_the_change_is_paired() -> None:
    truth = [PARIS, ()] * 20
    change = paired_change("answer_match", truth, [()] * 40, [PARIS[:1], ()] * 20)
    assert change.value == 50.0
    assert 0 < change.low < 50 < change.high
