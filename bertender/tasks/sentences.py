"""Sentences of documentation, each with the section of the docstring that it stands in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bertender.tasks.passages import docstrings_of, firsts_of_one_group, read_files, write_rows
from bertender.tasks.sections import NOTE, read_sections

SHORTEST_WORDS = 5
LONGEST_WORDS = 30
PLAIN_SHARE = 0.75
"""Of a sentence's words must be words, not code or numbers."""
TELLING_WORDS = 8
"""Sentences that begin with the same so many plain words are alike."""

ROLE = re.compile(r":[\w:+.-]+:`{1,2}([^`]*)`{1,2}|:class(?=\w)")
LINK = re.compile(r"`([^`<]+?) ?<[^>]*>`_{0,2}|\[([^\]]*)\]\([^)]*\)")
CITATION = re.compile(r"\s*\[(?:\d+|[#A-Z]\w*)\]_?")
REFERENCE = re.compile(r"\[`[~!.]?([^`\]]*)`\]")
MARKUP = re.compile(r"`+_{0,2}|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)")
END = re.compile(
    r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)(?<!cf\.)(?<!al\.)\s+(?=[A-Z])"
)
ODD = re.compile(r"[<>{}|\\=^$_]{2}|::|https?:|^\W")
WORD = re.compile(r"\(?[A-Za-z][A-Za-z'-]*[\"').,:;?!]*")
PLAIN_WORD = re.compile(r"[A-Za-z]?[a-z]+")


class Sentence(NamedTuple):
    """One sentence of one docstring."""

    library: str
    file: str  # relative to the library's root, with forward slashes
    section: str
    text: str


def read_sentences(
    roots: Mapping[str, Path],
    processes: int = 2,
    advance: Callable[[int], None] = lambda files: None,
) -> list[Sentence]:
    """Read the sentences of all Python files below some roots; arguments as in `read_files`."""
    return [Sentence(*row) for row in read_files(__name__, roots, processes, advance)]


def unlike(rows: Iterable[Sentence]) -> list[Sentence]:
    """Keep the first of sentences that are alike, and none of those that several sections share.

    Copied documentation differs in names and in its end. So sentences are alike whose first plain
    words are equal, where names, numbers and code are not plain words.
    """
    return firsts_of_one_group(
        rows, key=lambda row: _first_plain_words(row.text), group=lambda row: row.section
    )


def labelled_sentences(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the section and the text of the readable sentences.

    Of a note these are all. Of any other paragraph it is the first, which states the thing; later
    ones add to it, in words that would fit every section.
    """
    for section, paragraph in read_sections(docstring):
        parts = sentences(paragraph)
        for sentence in parts if section == NOTE else (next(parts, None),):
            if sentence is not None:
                yield section, sentence


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph that have 5 to 30 words, most of them plain English.

    Markup and the full stop are left out.
    """
    for sentence in END.split(_without_markup(paragraph)):
        words = sentence.split()
        plain = sum(WORD.fullmatch(word) is not None for word in words)
        readable = plain >= PLAIN_SHARE * len(words) and not ODD.search(sentence)
        if readable and SHORTEST_WORDS <= len(words) <= LONGEST_WORDS:
            yield sentence.rstrip(" .:;,")


def _without_markup(text: str) -> str:
    text = ROLE.sub(lambda match: (match[1] or "").lstrip("~!."), text)
    text = LINK.sub(lambda match: match[1] or match[2] or "", text)
    text = REFERENCE.sub(r"\1", CITATION.sub("", text))
    return MARKUP.sub("", text).strip()


def _first_plain_words(text: str) -> str:
    words = (word.strip("\"'().,:;?!") for word in text.split())
    plain = [word.lower() for word in words if PLAIN_WORD.fullmatch(word)]
    return " ".join(plain[:TELLING_WORDS])


def _sentences_of(root: Path, file: str) -> Iterator[tuple[str, str, str]]:
    for docstring in docstrings_of(root, file):
        for section, text in labelled_sentences(docstring):
            yield file, section, text


if __name__ == "__main__":
    write_rows(_sentences_of)
