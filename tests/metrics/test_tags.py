"""Schemes say the same entities in BIO; entity F1 has values by hand and an honest interval."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from bertender.core.errors import DataError
from bertender.metrics import METRICS, paired_change, score
from bertender.metrics.metric import LabelSet, Score, label_scores
from bertender.metrics.tags import (
    BIO,
    LONGER,
    EntityF1,
    UnusableTagError,
    entities,
    entities_of,
    scheme_of,
)
from bertender.problems.problem import Outputs
from bertender.problems.token_classification import TOKEN_CLASSIFICATION, spans_of

Entity = tuple[str, int]
"""Its type, or O, and its words."""


def bio(entities: list[Entity]) -> list[str]:
    return [tag for kind, size in entities for tag in spread(kind, size, "B", "I", "I", "B")]


def iobes(entities: list[Entity]) -> list[str]:
    return [tag for kind, size in entities for tag in spread(kind, size, "B", "I", "E", "S")]


def bilou(entities: list[Entity]) -> list[str]:
    return [tag for kind, size in entities for tag in spread(kind, size, "B", "I", "L", "U")]


def bmes(entities: list[Entity]) -> list[str]:
    return [tag for kind, size in entities for tag in spread(kind, size, "B", "M", "E", "S")]


def iob1(entities: list[Entity]) -> list[str]:
    befores = ["O", *(kind for kind, _ in entities)]
    return [
        tag
        for before, (kind, size) in zip(befores, entities, strict=False)
        for tag in spread(kind, size, *(("B", "I", "I", "B") if before == kind else "IIII"))
    ]


def spread(kind: str, size: int, first: str, middle: str, last: str, single: str) -> list[str]:
    if kind == "O":
        return ["O"] * size
    prefixes = [single] if size == 1 else [first, *[middle] * (size - 2), last]
    return [f"{prefix}-{kind}" for prefix in prefixes]


SCHEMES: dict[str, Callable[[list[Entity]], list[str]]] = {
    "BIO": bio,
    "IOB1": iob1,
    "IOBES": iobes,
    "BILOU": bilou,
    "BMES": bmes,
}
SENTENCE = st.lists(st.tuples(st.sampled_from(["O", "x", "y-z"]), st.integers(1, 4)), min_size=1)
ALL_PREFIXES: list[Entity] = [("x", 3), ("x", 1), ("O", 1), ("y-z", 2), ("O", 1), ("x", 2)]


@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=30)
@given(sentences=st.lists(SENTENCE))
def test_the_entities_are_the_same(name: str, sentences: list[list[Entity]]) -> None:
    sentences = [ALL_PREFIXES, *sentences, *[[("x", 3), ("O", 1)]] * 2 * len(sentences)]
    written = [SCHEMES[name](entities) for entities in sentences]
    scheme = scheme_of(written)
    assert scheme.name == name
    as_bio = [scheme.to_bio(tags) for tags in written]
    assert [list(tags) for tags in as_bio] == [bio(each) for each in sentences]
    assert [list(scheme.of_entities(tags)) for tags in as_bio] == written, (
        "written back as they came"
    )
    assert [entities_of(tags) for tags in written] == [entities_of(tags) for tags in as_bio]


@given(
    tags=st.lists(st.sampled_from(["O", "B-x", "I-x", "I-y", "E-x", "S-y", "B"])).filter(bool),
)
def test_entities_are_those_of_seqeval(tags: list[str]) -> None:
    expected = [(kind, first, last + 1) for kind, first, last in get_entities(tags)]
    named = [(kind or "_", first, end) for kind, first, end in entities_of(tags)]
    assert named == expected


def test_plain_tags_are_written_as_they_are() -> None:
    tags = ("DET", "NOUN", "O")
    assert scheme_of([tags]).of_entities(tags) == tags == BIO.of_entities(tags)


def test_further_tags_of_a_model_of_entities_stay() -> None:
    iobes = LONGER["IOBES"]
    assert iobes.of_entities(("B-x", "I-x", "X", "O")) == ("B-x", "E-x", "X", "O")
    assert iobes.of_entities(("[CLS]", "B-x", "X", "[SEP]")) == ("[CLS]", "S-x", "X", "[SEP]")


READ: dict[str, tuple[list[str], list[str]]] = {
    "one kind of entity": (["B", "I", "O", "B"], ["B", "I", "O", "B"]),
    "one kind, IOBES": (["S", "O", "B", "E"], ["B", "O", "B", "I"]),
    "parts of speech": (["DET", "NOUN", "O", "X-I"], ["DET", "NOUN", "O", "X-I"]),
    "outside alone": (["O", "O"], ["O", "O"]),
    "an entity that has no end": (["B-x", "O", "S-x"], ["B-x", "O", "B-x"]),
}


@pytest.mark.parametrize(("tags", "expected"), READ.values(), ids=READ)
def test_other_tags(tags: list[str], expected: list[str]) -> None:
    assert list(scheme_of([tags]).to_bio(tags)) == expected


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["B-x", "O", "I-x"], r"word 3: 'I-x' follows 'O'.*'B-x'"),
        (["B-x", "I-y"], "word 2: 'I-y' follows 'B-x'"),
        (["S-x", "E-x"], "word 2: 'E-x' follows 'S-x'"),
        (["B-x", "NOUN"], "word 2: 'NOUN' is not a BIO tag"),
        (["B-"], "word 1: 'B-' is not a BIO tag"),
    ],
)
def test_a_slip_of_an_annotator_is_no_entity(tags: list[str], said: str) -> None:
    with pytest.raises(UnusableTagError, match=said):
        scheme_of([tags]).to_bio(tags)


@pytest.mark.parametrize(
    ("tags", "said"),
    [(["B-x"], None), (["I-x"], "IOB1 tags are read as BIO"), (["NOUN"], "label of its own")],
)
def test_what_is_not_bio_is_noted(
    tags: list[str], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        scheme_of([tags]).note(Path("train.conll"))
    assert (said in caplog.text) if said else not caplog.text


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
