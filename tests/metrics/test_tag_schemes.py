"""Every scheme of tags says the same entities in BIO."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bertender.metrics.tag_schemes import BIO, LONGER, UnusableTagError, entities_of, scheme_of

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
