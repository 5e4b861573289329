"""Schemes of tags, all read as BIO with the same entities; a file has one scheme.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertender.problems.token_classification import BEGIN, INSIDE, OUTSIDE

__all__ = ["Scheme", "UnusableTagError", "is_entity_tag", "scheme_of"]

logger = logging.getLogger(__name__)

PREFIXED = re.compile("([BIMELSU])(?:-(.*))?", re.DOTALL)
"""A tag with a prefix; its type may be missing, as where there is one kind of entity alone."""
BEGINNING, ENDING = "BSU", "ELSU"
NAMES = {"M": "BMES", "L": "BILOU", "U": "BILOU", "E": "IOBES", "S": "IOBES"}
"""Prefixes that BIO does not have -> the scheme of the file that has them, the first of these."""

Tags = Sequence[str]
"""Of the words of a sentence."""


class UnusableTagError(Exception):
    """A tag that its sentence gives no meaning; says which, and why."""


class _Tag(NamedTuple):
    prefix: str
    entity: str
    continues: bool
    """It stands right after a word of an entity of its type, which has not ended."""

    @property
    def begins(self) -> bool:
        return self.prefix in BEGINNING


class Scheme(NamedTuple):
    """The scheme of a file's tags."""

    name: str
    to_bio: Callable[[Tags], tuple[str, ...]]
    """the tags of a sentence -> the same entities in BIO; raises UnusableTagError"""

    def note(self, path: Path) -> None:
        """Log how tags that are not BIO are read."""
        if self is PLAIN:
            logger.warning(
                "%s: tags without B- and I-: each is a label of its own, and the score counts "
                "words, not entities of several words",
                path,
            )
        elif self is not BIO:
            logger.warning(
                "%s: %s tags are read as BIO; the entities are the same", path, self.name
            )


def is_entity_tag(tag: str) -> bool:
    """Return whether a tag is O, or has a prefix."""
    return tag == OUTSIDE or PREFIXED.fullmatch(tag) is not None


def scheme_of(sentences: Iterable[Tags]) -> Scheme:
    """Return the scheme that most tags of a file are of; the others are unusable in it."""
    sentences = [*sentences]
    counts = Counter(tag for tags in sentences for tag in tags if tag != OUTSIDE)
    prefixes = Counter[str]()
    for tag, count in counts.items():
        if match := PREFIXED.fullmatch(tag):
            prefixes[match[1]] += count
    if prefixes.total() < counts.total() / 2:
        return PLAIN
    if known := [prefix for prefix in NAMES if prefixes[prefix]]:
        return Scheme(NAMES[known[0]], _of_prefixes)
    tags = [tag for sentence in sentences for tag in _parsed(sentence) if tag is not None]
    first = Counter(tag.prefix for tag in tags if not tag.continues)
    return IOB1 if first["I"] > first["B"] else BIO


def _parsed(tags: Tags) -> Iterator[_Tag | None]:
    """Yield the parts of each tag; None for O, and for what is no tag with a prefix."""
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


def _of_prefixes(tags: Tags) -> tuple[str, ...]:
    return tuple(_bio(tags, begins_inside=False))


def _of_iob1(tags: Tags) -> tuple[str, ...]:
    return tuple(_bio(tags, begins_inside=True))


def _bio(tags: Tags, begins_inside: bool) -> Iterator[str]:
    """Yield the tags in BIO; an entity may begin with I in IOB1 alone."""
    for word, (tag, parsed) in enumerate(zip(tags, _parsed(tags), strict=True), start=1):
        if tag == OUTSIDE:
            yield OUTSIDE
        elif parsed is None or tag.endswith("-"):
            raise UnusableTagError(
                f"word {word}: {tag!r} is not a BIO tag. Allowed: O, B-TYPE and I-TYPE; the same "
                "in IOB1, IOBES or BILOU; or tags without prefixes alone"
            )
        elif parsed.begins or (begins_inside and not parsed.continues):
            yield _joined(BEGIN, parsed.entity)
        elif parsed.continues:
            yield _joined(INSIDE, parsed.entity)
        else:
            before = tags[word - 2] if word > 1 else OUTSIDE
            raise UnusableTagError(
                f"word {word}: {tag!r} follows {before!r}, so that there is no entity to continue. "
                f"The first word of one is tagged {_joined(BEGIN, parsed.entity)!r}"
            )


def _joined(prefix: str, entity: str) -> str:
    return f"{prefix}-{entity}" if entity else prefix


BIO, IOB1 = Scheme("BIO", _of_prefixes), Scheme("IOB1", _of_iob1)
PLAIN = Scheme("plain", tuple)
