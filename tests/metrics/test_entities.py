"""Entity F1: values by hand, and an interval that says how few sentences there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from seqeval.metrics import f1_score

from bertender.core.errors import DataError
from bertender.metrics import METRICS, paired_change, score
from bertender.metrics.metric import LabelSet, Score, label_scores
from bertender.metrics.tags import EntityF1, entities
from bertender.problems.problem import Outputs
from bertender.problems.token_classification import TOKEN_CLASSIFICATION, spans_of

NAMES = ("O", "B-x", "I-x", "B-y", "I-y")
Tags = Sequence[Sequence[str]]
TRUTH = (("O", "B-x", "I-x", "O"), ("B-y", "B-y"), ("O",))


def numbers(sentences: Tags) -> list[list[int]]:
    return [[NAMES.index(tag) for tag in tags] for tags in sentences]


def entity_f1(truth: Tags, answers: Tags) -> Score:
    return score("entity_f1", numbers(truth), numbers(answers), labels=NAMES)


def test_all_right() -> None:
    score = entity_f1(TRUTH, TRUTH)
    assert (score.metric, score.n) == ("entity_f1", 3)
    assert (score.value, score.high) == (1.0, 1.0)


def test_an_entity_counts_as_a_whole() -> None:
    """A shorter x, one right y and one y that is an x: 1 hit, 3 true, 3 answered."""
    answers = (("O", "B-x", "O", "O"), ("B-y", "B-x"), ("O",))
    assert entity_f1(TRUTH, answers).value == pytest.approx(2 * 1 / (3 + 3))


def test_plain_tags_count_by_the_word() -> None:
    """Parts of speech: neighbours of one kind are several; O is none."""
    names = ("O", "ART", "NOUN")
    truth, answers = ((1, 2, 2), (2, 0)), ((1, 2, 1), (2, 2))
    value = METRICS["entity_f1"].score(truth, answers, LabelSet(3, names), 0)[0]
    assert value == pytest.approx(2 * 3 / (4 + 5))


@pytest.mark.parametrize("inside", ["I", "M"])
def test_further_tags_of_a_finished_model_leave_its_entities_whole(inside: str) -> None:
    """Some taggers were trained with tags for parts of words and for special tokens."""
    names = ("O", "[PAD]", "X", "[CLS]", "[SEP]", "B-x", f"{inside}-x")
    assert TOKEN_CLASSIFICATION.metrics_of(names, ())[0] == "entity_f1"
    assert entities((0, 5, 6, 6), names) == {("x", (1, 4))}
    logits = np.eye(len(names), dtype=np.float32)[[0, 5, 6]]
    found = spans_of(
        Outputs(logits, np.arange(3)), ("by", "Miles", "Davis"), "by Miles Davis", names
    )
    assert [(span.label, span.text) for span in found] == [("x", "Miles Davis")]


def test_none_found_is_zero() -> None:
    score = entity_f1(TRUTH, [["O"] * len(tags) for tags in TRUTH])
    assert (score.value, score.low, score.high) == (0.0, 0.0, 0.0)


def test_the_counts_give_seqevals_value() -> None:
    """An I without a B begins an entity, as in CoNLL's script."""
    answers = (("I-x", "I-x", "I-x", "B-y"), ("I-y", "B-y"), ("B-x",))
    ((true, found),) = EntityF1().prepared(numbers(TRUTH), [numbers(answers)], LabelSet(5, NAMES))
    hits, answered = found.sum(0)
    expected = f1_score([list(tags) for tags in TRUTH], [list(tags) for tags in answers])
    assert 2 * hits / (true.sum() + answered) == pytest.approx(expected)
    assert entity_f1(TRUTH, answers).value == pytest.approx(expected)


def test_the_interval_narrows_with_sentences() -> None:
    answers = (("O", "B-x", "I-x", "O"), ("B-y", "O"), ("B-x",))
    widths = []
    for times in (4, 100):
        score = entity_f1(TRUTH * times, answers * times)
        assert score.low < score.value < score.high
        widths.append(score.high - score.low)
    assert widths[0] / widths[1] == pytest.approx(5, rel=0.3)  # the root of 25 times as many
    assert score == entity_f1(TRUTH * 100, answers * 100), "drawn from the seed"


def test_a_gain_is_that_of_the_scores_and_paired_by_sentence() -> None:
    known = LabelSet(5, ("O", "B-x", "I-x", "B-y", "I-y"))
    right = ((0, 1, 2, 0), (3, 3), (0,)) * 20
    worse = ((0, 1, 2, 0), (0, 3), (0,)) * 20
    change = paired_change("entity_f1", right, worse, right, known)
    value = METRICS["entity_f1"].score(right, worse, known, 0)[0]
    assert change.value == pytest.approx(100 * (1 - value))
    assert change.low < change.value < change.high
    same = paired_change("entity_f1", right, worse, worse, known)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((), "3 labels and 0 predictions.*one prediction a row"),
        (TRUTH[:2], "3 labels and 2 predictions.*one prediction a row"),
        ((("O",), *TRUTH[1:]), "1 predicted tags for 4 words: there must be one for each"),
    ],
)
def test_answers_to_other_words_are_refused(answers: Tags, said: str) -> None:
    with pytest.raises(DataError, match=said):
        entity_f1(TRUTH, answers)


def test_no_sentences_are_refused() -> None:
    with pytest.raises(DataError, match="Give at least one"):
        entity_f1((), ())


def test_words_of_plain_tags_are_counted() -> None:
    truth, predicted = ((0, 1, 2), (1,), (2, 2)), ((0, 1, 1), (1,), (2, 0))
    found = score("tag_accuracy", truth, predicted, labels=("O", "DET", "NOUN"))
    assert (found.value, found.n) == (pytest.approx(4 / 6), 3)
    assert found.low < found.value < found.high
    change = paired_change("tag_accuracy", truth, predicted, truth)
    assert change.value == pytest.approx(100 / 3)
    with pytest.raises(DataError, match="2 predicted tags for 1 words"):
        score("tag_accuracy", truth, ((0, 1, 1), (1, 1), (2, 0)))


def test_each_type_has_its_own_scores() -> None:
    names = ("O", "B-x", "I-x", "B-y", "I-y")
    truth, answers = ((0, 1, 2, 0), (3, 3)), ((0, 1, 0, 0), (3, 1))
    parts = [[entities(tags, names) for tags in rows] for rows in (truth, answers)]
    found = label_scores(*parts, ())
    assert list(found) == ["x", "y"]
    assert (found["x"].precision, found["x"].recall) == (0, 0), "its end is another word"
    assert (found["y"].precision, found["y"].recall) == (1, 0.5)


def test_sentences_without_entities_have_no_f1() -> None:
    names = ("O", "B-x", "I-x")
    assert score("entity_f1", [(0, 0)], [(0, 1)], labels=names).undefined == "every word is O"
