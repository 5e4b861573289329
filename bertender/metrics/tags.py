"""Tags of words: schemes of entities and their conversion to and from BIO, and scores of taggers.

BIO (IOB2)     B-TYPE begins an entity, I-TYPE continues it, O is outside of all
IOB1           an entity begins with I-TYPE; with B-TYPE only right after another of its type
               (Ramshaw and Marcus 1995, arXiv cmp-lg/9505040; CoNLL-2003's files)
IOBES, BILOU,  more prefixes: E or L ends an entity, S or U is one of a single word, M continues one
BMES           (Ratinov and Roth 2009, W09-1119)
plain          no prefixes: each tag is a label of its own, such as a part of speech
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertender.core.errors import DataError
from bertender.metrics.metric import FloatArray, IntArray, LabelSet, Rows, RowsMetric, divide

logger = logging.getLogger(__name__)

OUTSIDE = "O"
BEGIN, INSIDE = "B", "I"
PREFIXED = re.compile("([BIMELSU])(?:-(.*))?", re.DOTALL)
"""A tag with a prefix; its type may be missing if there is one kind of entity."""
BEGINNING, ENDING, CONTINUING = "BSU", "ELSU", "IMEL"
NAMES = {"M": "BMES", "L": "BILOU", "U": "BILOU", "E": "IOBES", "S": "IOBES"}
"""Prefixes that BIO lacks -> the scheme of a file with them; the first match counts."""

Tags = Sequence[str]
"""Tags of a sentence's words."""


class UnusableTagError(Exception):
    """A tag without a meaning in its sentence, with the reason."""

    def __init__(self, word: int, problem: str) -> None:
        super().__init__(f"word {word + 1}: {problem}")
        self.word = word


class Entity(NamedTuple):
    """Words of an entity, and its type."""

    kind: str
    first: int
    end: int
    """The word after the last."""


class _Tag(NamedTuple):
    prefix: str
    entity: str
    continues: bool
    """Whether it directly follows an entity of its type."""


class Scheme(NamedTuple):
    """The scheme of a file's tags."""

    name: str
    begins_inside: bool = False
    """Entities may begin with I."""
    prefixes: str = "BIIB"
    """Prefixes of an entity's first word, inner words, last word, and single word."""

    def to_bio(self, tags: Tags) -> tuple[str, ...]:
        """Return the entities of a sentence in BIO.

        Raises:
            UnusableTagError: a tag has no meaning in the scheme.
        """
        return tuple(tags if self == PLAIN else _bio(tags, self.begins_inside))

    def of_entities(self, tags: Tags) -> tuple[str, ...]:
        """Return the tags of a sentence in this scheme; tags without a prefix are unchanged."""
        if self == PLAIN:
            return tuple(tags)
        written = [OUTSIDE if is_entity_tag(tag) else tag for tag in tags]
        before: Entity | None = None
        for entity in entities_of([*map(_or_outside, tags)]):
            begin, inside, last, alone = tuple(self.prefixes)
            follows = before is not None and before.end == entity.first
            if self.begins_inside and not (follows and before and before.kind == entity.kind):
                begin = alone = INSIDE
            size = entity.end - entity.first
            prefixes = alone if size == 1 else begin + inside * (size - 2) + last
            written[entity.first : entity.end] = [_joined(each, entity.kind) for each in prefixes]
            before = entity
        return tuple(written)

    def note(self, path: Path) -> None:
        """Log the scheme of tags that are not BIO."""
        if self == PLAIN:
            logger.warning(
                "%s: tags without B- and I-: each is a label of its own, and the score is the "
                "share of right words, not of entities",
                path,
            )
        elif self != BIO:
            logger.warning(
                "%s: %s tags are read as BIO; the entities are the same", path, self.name
            )


BIO, IOB1, PLAIN = Scheme("BIO"), Scheme("IOB1", begins_inside=True), Scheme("plain")
LONGER = {
    "BMES": Scheme("BMES", prefixes="BMES"),
    "BILOU": Scheme("BILOU", prefixes="BILU"),
    "IOBES": Scheme("IOBES", prefixes="BIES"),
}


def _or_outside(tag: str) -> str:
    """Return a tag, or O for one that marks no entity."""
    return tag if is_entity_tag(tag) else OUTSIDE


def are_bio(tags: Iterable[str]) -> bool:
    """Return whether all tags are BIO; bare B and I are for a single kind of entity."""
    return all(tag == OUTSIDE or _is_bio(tag) for tag in tags)


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Return whether tags mark entities in some scheme; else they are plain.

    A finished model may have further tags, as X and [CLS] for parts of words and special tokens: a
    type that begins and goes on is enough then.
    """
    tags = {*tags}
    types = {tag[len(BEGIN) :] for tag in tags if tag.startswith(f"{BEGIN}-")}
    goes_on = any(prefix + kind in tags for prefix in CONTINUING for kind in types)
    return goes_on or all(map(is_entity_tag, tags))


def is_entity_tag(tag: str) -> bool:
    """Return whether a tag is O, or has a prefix."""
    return tag == OUTSIDE or PREFIXED.fullmatch(tag) is not None


def continued(tag: str) -> str:
    """Return the tag of a later part of a word, given that of the previous part."""
    return INSIDE + tag[len(BEGIN) :] if _is_bio(tag) else tag


def entities_of(tags: Tags) -> list[Entity]:
    """Return the entities of a sentence's tags in any scheme, as seqeval and CoNLL's script do. An
    entity begins at a beginning prefix, or if the previous word has another type. A tag without a
    prefix is an entity of one word.
    """
    found: list[Entity] = []
    is_open = False
    for word, (tag, parsed) in enumerate(zip(tags, _parsed(tags), strict=True)):
        if tag == OUTSIDE:
            is_open = False
        elif parsed is None:
            found.append(Entity(tag, word, word + 1))
            is_open = False
        elif is_open and parsed.continues and parsed.prefix not in BEGINNING:
            found[-1] = found[-1]._replace(end=word + 1)
        else:
            found.append(Entity(parsed.entity, word, word + 1))
            is_open = True
    return found


def scheme_of(sentences: Iterable[Tags]) -> Scheme:
    """Return the scheme of most tags of a file; tags of other schemes are unusable."""
    sentences = [*sentences]
    counts = Counter(tag for tags in sentences for tag in tags if tag != OUTSIDE)
    prefixes = Counter[str]()
    for tag, count in counts.items():
        if match := PREFIXED.fullmatch(tag):
            prefixes[match[1]] += count
    if prefixes.total() < counts.total() / 2:
        return PLAIN
    if known := [prefix for prefix in NAMES if prefixes[prefix]]:
        return LONGER[NAMES[known[0]]]
    tags = [tag for sentence in sentences for tag in _parsed(sentence) if tag is not None]
    first = Counter(tag.prefix for tag in tags if not tag.continues)
    return IOB1 if first["I"] > first["B"] else BIO


def _parsed(tags: Tags) -> Iterator[_Tag | None]:
    """Yield the parts of each tag; None for O and tags without a prefix."""
    entity: str | None = None
    for tag in tags:
        match = PREFIXED.fullmatch(tag)
        if match is None:
            entity = None
            yield None
            continue
        prefix, own = match[1], match[2] or ""
        yield _Tag(prefix, own, continues=entity == own)
        entity = None if prefix in ENDING else own


def _bio(tags: Tags, begins_inside: bool) -> Iterator[str]:
    """Yield the tags in BIO."""
    for word, (tag, parsed) in enumerate(zip(tags, _parsed(tags), strict=True)):
        if tag == OUTSIDE:
            yield OUTSIDE
        elif parsed is None or tag.endswith("-"):
            raise UnusableTagError(
                word,
                f"{tag!r} is not a BIO tag. Allowed: O, B-TYPE and I-TYPE; the same "
                "in IOB1, IOBES or BILOU; or tags without prefixes alone",
            )
        elif parsed.prefix in BEGINNING or (begins_inside and not parsed.continues):
            yield _joined(BEGIN, parsed.entity)
        elif parsed.continues:
            yield _joined(INSIDE, parsed.entity)
        else:
            before = tags[word - 1] if word else OUTSIDE
            raise UnusableTagError(
                word,
                f"{tag!r} follows {before!r} and continues no entity. Tag the first "
                f"word of an entity {_joined(BEGIN, parsed.entity)!r}",
            )


def _joined(prefix: str, entity: str) -> str:
    return f"{prefix}-{entity}" if entity else prefix


def _is_bio(tag: str) -> bool:
    match = PREFIXED.fullmatch(tag)
    return match is not None and match[1] in BEGIN + INSIDE and match[2] != ""


NO_TYPE = "_"
"""Type of entities whose tags are prefixes alone."""


class EntityF1(RowsMetric):
    """F1 of whole entities, with a bootstrap interval over sentences.

    An entity is correct if its type and its first and last word are (Tjong Kim Sang and De Meulder
    2003, arXiv cs/0306050). The value is seqeval's, which reads tags like CoNLL's script. If tags
    are plain, such as parts of speech, each word whose tag is not O counts as one entity.
    Predictions are tag numbers, one for each word of a sentence.
    """

    def undefined(self, label_ids: Rows, predictions: Rows, known: LabelSet) -> str | None:
        if not are_entity_tags(known.names):
            return "its tags mark no entities"
        outside = known.names.index(OUTSIDE) if OUTSIDE in known.names else None
        if any(number != outside for numbers in label_ids for number in numbers):
            return None
        return f"every word is {OUTSIDE}"

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[IntArray, IntArray]]:
        """Return the number of entities of each sentence, (sentences,), and those of correct and
        predicted ones, (sentences, 2)."""
        _check_words(label_ids, predictions)
        truth, *models = (
            [entities(tags, known.names) for tags in rows] for rows in (label_ids, *predictions)
        )
        counts = np.array([*map(len, truth)])
        return [
            (counts, np.array([(len(a & b), len(b)) for a, b in zip(truth, own, strict=True)]))
            for own in models
        ]

    def of_draws(self, truth: IntArray, predicted: IntArray, draws: FloatArray) -> FloatArray:
        correct, found = (draws @ predicted).T
        return divide(2 * correct, draws @ truth + found)


class TagAccuracy(RowsMetric):
    """The share of words with the right tag, with a bootstrap interval over sentences.

    It is the score for plain tags, such as parts of speech. Words of a sentence are not
    independent, so an interval over words would be too narrow.
    """

    def prepared(
        self, label_ids: Rows, predictions: Sequence[Rows], known: LabelSet
    ) -> Sequence[tuple[IntArray, IntArray]]:
        """Return the numbers of words and of correct words of each sentence, (sentences,)."""
        _check_words(label_ids, predictions)
        words = np.array([*map(len, label_ids)])
        return [
            (words, np.array([np.equal(a, b).sum() for a, b in zip(label_ids, own, strict=True)]))
            for own in predictions
        ]

    def of_draws(self, truth: IntArray, predicted: IntArray, draws: FloatArray) -> FloatArray:
        return divide(draws @ predicted, draws @ truth)


def _check_words(label_ids: Rows, predictions: Sequence[Rows]) -> None:
    """Raise DataError unless each word has one predicted tag."""
    for rows in predictions:
        for true, own in zip(label_ids, rows, strict=True):
            if len(true) != len(own):
                raise DataError(
                    f"{len(own)} predicted tags for {len(true)} words: there must be one for each."
                )


def entities(tags: Sequence[int], names: Sequence[str]) -> set[tuple[str, tuple[int, int]]]:
    """Return the type of each entity of a sentence, its first word and the one after its last; with
    plain tags, each word is an entity of its own.

    Args:
        tags: the number of each word's tag.
        names: names of the tags.
    """
    own = [names[number] for number in tags]
    if are_entity_tags(names):
        found = entities_of(own)
    else:
        found = [Entity(tag, word, word + 1) for word, tag in enumerate(own) if tag != OUTSIDE]
    return {(kind or NO_TYPE, (first, end)) for kind, first, end in found}
