"""Rows of sentences that are split into words, with tags of any scheme read as BIO.

CoNLL          a word and its tag a line, in columns; an empty line ends a sentence, and comments
               stand between. A file with predicted tags is the same file with one more column, in
               the scheme of its tags
NAME.seq.in    a sentence a line, and in NAME.seq.out next to it the tags of each; NAME.label, where
               it is there, has one label of each sentence
JSONL, Parquet a list of words and a list of tags a row

Only tabs and spaces separate words and tags: a no-break space belongs to a word, and so does a
space in a file with tabs. A file has one scheme of tags, a `Scheme` of `metrics.tags`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile, groupby
from pathlib import Path
from typing import NamedTuple

from bertender.core.errors import DataError, RowError
from bertender.metrics.tags import (
    BIO,
    OUTSIDE,
    PLAIN,
    UnusableTagError,
    are_entity_tags,
    is_entity_tag,
    scheme_of,
)
from bertender.problems.reading import CellError
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.labelled import cell_error
from bertender.tasks.rows import (
    NOT_UTF8,
    TAB,
    OnBadRow,
    Row,
    Table,
    decoded_bytes,
    not_utf8,
    read_jsonl,
    read_parquet,
    split_lines,
    stop,
)

DOCUMENT = "-DOCSTART-"
"""First word of the line before each document in CoNLL files."""
COMMENT = re.compile("#[ \t]|#(begin|end) document|###MEDLINE:")
"""Starts of comments in CoNLL-U and similar formats, CoNLL-2012 and GENIA: "#nlp" and "#" are
words."""
NO_WORD = re.compile(r"\d+[-.]\d+")
"""Number of a CoNLL-U line that is not a word: a contraction or an empty node."""
NAMED = re.compile(r"#\s*global\.columns\s*=(.*)")
"""A CoNLL-U Plus comment with the column names."""
LAYOUTS = {
    3: ("word", "pos", "chunk"),
    4: ("word", "pos", "chunk", "ner"),
    10: ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"),
}
"""Columns -> their names in CoNLL-2000, CoNLL-2003 and CoNLL-U."""
MISSING = "_"
"""A missing tag."""
BLANKS = " \t"
(WORDS,), TAGS = TOKEN_CLASSIFICATION.columns


def read_conll(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file with one word per line, empty lines between sentences, and comments before them.

    Its columns have numbers from 1, and names if the file has a header or the width of one of
    LAYOUTS. By default the first column has the words and the last the tags.
    """
    conll = ConllFile.read(path)
    return Table(path, tuple(conll.places), partial(conll.rows, bad), bad)


class _Line(NamedTuple):
    """A line of a file."""

    number: int
    text: str
    cells: list[str]

    @property
    def is_document(self) -> bool:
        return self.text.split()[0] == DOCUMENT

    @property
    def is_marked(self) -> bool:
        """Whether it begins a document, or looks like a comment."""
        return self.is_document or COMMENT.match(self.text) is not None


@dataclass(frozen=True)
class ConllFile:
    """A file with one word per line."""

    path: Path
    sentences: list[list[_Line]]
    """Sentences without comments and document lines."""
    width: int
    """Number of columns in most lines."""
    widths: frozenset[int]
    """Possible numbers of columns: a file may have several sources."""
    texts: list[str]
    """All lines as in the file."""
    separator: str
    """Separator of columns."""
    end: str
    """End of lines."""

    @classmethod
    def read(cls, path: Path) -> ConllFile:
        """Read a file; errors in a line are raised with its sentence."""
        text = decoded_bytes(path)
        texts = split_lines(text)
        filled_texts = [text for text in texts if text.strip() and not COMMENT.match(text)]
        has_tabs = 2 * sum(TAB in text for text in filled_texts) > len(filled_texts)
        split = _split_at_tabs if has_tabs else split_at_blanks
        lines = (_Line(number, text, split(text)) for number, text in enumerate(texts, start=1))
        filled = groupby(lines, lambda line: bool(line.text.strip()))
        groups = [[*group] for is_filled, group in filled if is_filled]
        words = [line for group in groups for line in group if not line.is_marked]
        width = Counter(len(line.cells) for line in words).most_common(1)[0][0] if words else 0
        has_entities = 2 * sum(is_entity_tag(line.cells[-1]) for line in words) > len(words)

        def is_word(line: _Line) -> bool:
            """Comments have another number of columns, or no valid tag if all tags are entity
            tags."""
            tagged = not has_entities or is_entity_tag(line.cells[-1])
            return not line.is_marked or (len(line.cells) == width and tagged)

        uncommented = ([*dropwhile(lambda line: not is_word(line), group)] for group in groups)
        sentences = [
            [line for line in group if not line.is_document] for group in uncommented if group
        ]
        even = [sentence for sentence in sentences if len(sentence) > 1 and _is_even(sentence)]
        widths = frozenset((width, *(len(sentence[0].cells) for sentence in even)))
        sentences = [sentence for sentence in sentences if sentence]
        return cls(
            path,
            sentences,
            width,
            widths,
            texts,
            TAB if has_tabs else " ",
            "\r\n" if "\r\n" in text else "\n",
        )

    @property
    def places(self) -> Mapping[str, int]:
        """Index of each column, by number and by lower-case name."""
        found = (NAMED.match(text) for text in self.texts)
        named = next((match[1].lower().split() for match in found if match), None)
        names = named or LAYOUTS.get(self.width, ())
        numbers = {str(place + 1): place for place in range(self.width)}
        return {**dict(zip(names, range(self.width), strict=False)), WORDS: 0, TAGS: -1, **numbers}

    def rows(self, bad: OnBadRow, columns: Sequence[str]) -> Iterator[Row]:
        """Yield a row for each sentence, with lists of strings in `columns`."""
        places = {name: self.places[name] for name in columns}
        if self.sentences:
            self._check_columns([*places.values()])
        for sentence in self.sentences:
            if 0 not in places.values():
                sentence = [line for line in sentence if not NO_WORD.fullmatch(line.cells[0])]
            try:
                self._check(sentence, [*places.values()])
            except RowError as error:
                bad(error)
                continue
            if sentence:
                values = {
                    name: [line.cells[place] for line in sentence] for name, place in places.items()
                }
                lines = [line.number for line in sentence]
                yield Row(f"line {lines[0]}", values, lines)

    def with_tags(self, sentences: Sequence[tuple[Sequence[int], Sequence[str]]]) -> str:
        """Return the file with a column of predicted tags, in the file's scheme.

        Args:
            sentences: for each sentence, the lines of its words, and their tags.
        """
        scheme = BIO if are_entity_tags(tag for _, tags in sentences for tag in tags) else PLAIN
        if self.width > 1 and scheme == BIO:
            own = scheme_of([line.cells[-1] for line in sentence] for sentence in self.sentences)
            scheme = BIO if own == PLAIN else own
        by_line: dict[int, str] = {}
        for lines_of_words, tags in sentences:
            by_line |= zip(lines_of_words, scheme.of_entities(tags), strict=True)
        numbers = {line.number for sentence in self.sentences for line in sentence}
        lines = []
        for number, text in enumerate(self.texts, start=1):
            if number in numbers:
                text = f"{text.rstrip(BLANKS)}{self.separator}{by_line.get(number, MISSING)}"
            elif text.split()[:1] == [DOCUMENT]:  # as many columns as words have
                text = f"{text.rstrip(BLANKS)}{self.separator}{OUTSIDE}"
            lines.append(text)
        return self.end.join(lines) + self.end

    def _check_columns(self, places: Sequence[int]) -> None:
        """Raise DataError if words and tags are the same column, or the first column numbers the
        words."""
        if len({place % self.width for place in places}) < len(places):
            raise DataError(
                f"{self.path}: words and tags are both column {places[0] % self.width + 1}. Name "
                f"two columns from 1 to {self.width} with --text-column and --label-column."
            )
        if 0 in places and self._counts_words():
            raise DataError(
                f"{self.path}: column 1 numbers the words. Name the column of words, in CoNLL-U "
                "--text-column 2, and where tags are read theirs, such as --label-column 4 for the "
                "parts of speech."
            )

    def _check(self, sentence: Sequence[_Line], places: Sequence[int]) -> None:
        """Raise RowError for the first line of a sentence with wrong columns."""
        is_even = _is_even(sentence)
        for line in sentence:
            if match := NOT_UTF8.search(line.text):
                raise not_utf8(self.path, f"line {line.number}", match)
            width = len(line.cells)
            if width < min(2, 1 + max(map(abs, places))):
                reason = (
                    f"{line.cells[0]!r} has no tag. A line holds a word and its tag, with tabs, or "
                    "spaces in a file without tabs, between columns; an empty line ends a sentence."
                )
            elif width not in self.widths or (width != self.width and not is_even):
                reason = (
                    f"{width} columns, and {self.width} in most lines. Where tabs separate the "
                    "columns of a file, words may hold spaces."
                )
            elif max(places) >= width:
                reason = f"{width} columns, and column {max(places) + 1} is to be read."
            elif not all(line.cells[place] for place in places):
                reason = "a word or its tag is empty. Fill it in, or leave the line out."
            else:
                continue
            raise RowError(self.path, f"line {line.number}", reason)

    def _counts_words(self) -> bool:
        """Return whether the first column counts 1, 2, 3 in each sentence."""
        counted = [
            [line.cells[0] for line in sentence if not NO_WORD.fullmatch(line.cells[0])]
            for sentence in self.sentences
        ]
        return any(len(words) > 1 for words in counted) and all(
            words == [str(number) for number in range(1, len(words) + 1)] for words in counted
        )


def _is_even(sentence: Sequence[_Line]) -> bool:
    return len({len(line.cells) for line in sentence}) == 1


def _split_at_tabs(line: str) -> list[str]:
    return [cell.strip(BLANKS) for cell in line.rstrip(BLANKS).split(TAB)]


def split_at_blanks(line: str) -> list[str]:
    return re.split(f"[{BLANKS}]+", line.strip(BLANKS)) if line.strip(BLANKS) else []


LABEL = "label"
"""Column with one label per sentence, next to WORDS and TAGS."""


def open_words(path: Path, bad: OnBadRow = stop) -> Table:
    """Open a file of sentences by its suffix, a row of WORD_READERS; others are in CoNLL format.

    The last requested column has the tags, which are converted to BIO.
    """
    table = WORD_READERS.get(path.suffix.lower(), read_conll)(path, bad)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        """Yield rows with BIO tags; cells that are not lists are unchanged, to be checked later."""
        column = columns[-1]
        rows = [*table.read(columns)]
        tagged = [_tags(row.values.get(column)) for row in rows]
        scheme = scheme_of(tags for tags in tagged if tags is not None)
        scheme.note(path)
        for row, tags in zip(rows, tagged, strict=True):
            try:
                own = row.values if tags is None else {**row.values, column: [*scheme.to_bio(tags)]}
            except UnusableTagError as error:
                place = f"line {row.lines[error.word]}" if row.lines else row.place
                bad(cell_error(path, place, CellError(column, str(error))))
            else:
                yield Row(row.place, own)

    return replace(table, read=rows)


def read_two_files(path: Path, bad: OnBadRow = stop, *, tagged: bool = True) -> Table:
    """Open NAME.seq.in: one sentence per line, with tags on the same line of NAME.seq.out and, if
    present, a label on that line of NAME.label.

    Args:
        path: the file of sentences.
        bad: called with each row that cannot be used.
        tagged: whether the tags are necessary.

    Raises:
        DataError: a file is missing, or the numbers of lines differ.
    """
    beside = {TAGS: path.with_suffix(".out"), LABEL: path.with_suffix("").with_suffix(".label")}
    columns = {WORDS: split_lines(decoded_bytes(path))}
    for name, file in beside.items():
        if not file.is_file() and not (tagged and name == TAGS):
            continue
        columns[name] = split_lines(decoded_bytes(file))
        if len(columns[name]) != len(columns[WORDS]):
            raise DataError(
                f"{file}: {len(columns[name])} lines of {name} for the {len(columns[WORDS])} "
                f"sentences of {path}. Each sentence needs one line."
            )

    def rows(asked: Sequence[str]) -> Iterator[Row]:
        for number, lines in enumerate(zip(*columns.values(), strict=True), start=1):
            place = f"line {number}"
            if match := NOT_UTF8.search("\n".join(lines)):
                bad(not_utf8(path, place, match))
                continue
            named = zip(columns, lines, strict=True)
            yield Row(
                place,
                {name: line if name == LABEL else split_at_blanks(line) for name, line in named},
            )

    return Table(path, tuple(columns), rows, bad)


SENTENCES = ".in"
"""Suffix of files whose tags lie in another file."""
WORDS_ALONE: Mapping[str, Callable[[Path, OnBadRow], Table]] = {
    SENTENCES: read_two_files,
    ".conll": read_conll,
    ".conllu": read_conll,
    ".iob": read_conll,
    ".bio": read_conll,
}
WORD_A_LINE = tuple(suffix for suffix, read in WORDS_ALONE.items() if read is read_conll)
WORD_READERS = {".jsonl": read_jsonl, ".parquet": read_parquet, **WORDS_ALONE}
WORD_SUFFIXES = frozenset(WORDS_ALONE)
"""Suffixes of files that only this problem type has."""


def _tags(cell: object) -> list[str] | None:
    if isinstance(cell, (list, tuple)) and all(isinstance(tag, str) for tag in cell):
        return [tag.strip() for tag in cell]
    return None
