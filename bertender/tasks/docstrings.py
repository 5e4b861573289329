"""Text of the docstrings of Python files: passages of 30 words, and sentences with their section.

Files are parsed with `ast`, never imported. Parsing holds the interpreter's lock, so processes do
the work: this module also runs as a script, which reads file names (a JSON list) from standard
input and writes rows (JSON) to standard output. It therefore imports only the standard library.
`multiprocessing` would run the caller's script again in each worker unless it guards its main part;
this does not.

Sections have three layouts, which a docstring may mix: numpydoc's underlined headings, Google's
indented blocks below `Args:`, and Sphinx's fields (`:param x:`) and directives (`.. note::`). Names
and types of parameters, types of return values and exceptions, and the headings are left out, since
they would reveal the section.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

LONGEST_WORDS = 30
"""Most words of a passage or a sentence."""
SHORTEST_PASSAGE = 15
SHORTEST_SENTENCE = 5
FILES_A_BATCH = 100
SKIPPED_FOLDERS = frozenset({"test", "tests", "site-packages", "dist-packages", "__pycache__"})

SUMMARY, PARAMETER, RETURN = "summary", "parameter", "return value"
EXCEPTION, NOTE = "exception", "note"
SECTIONS = (SUMMARY, PARAMETER, RETURN, EXCEPTION, NOTE)

HEADINGS: Mapping[str, str] = {
    "parameters": PARAMETER,
    "other parameters": PARAMETER,
    "params": PARAMETER,
    "args": PARAMETER,
    "arguments": PARAMETER,
    "keyword args": PARAMETER,
    "keyword arguments": PARAMETER,
    "returns": RETURN,
    "return": RETURN,
    "raises": EXCEPTION,
    "raise": EXCEPTION,
    "note": NOTE,
    "notes": NOTE,
}
"""Headings in lower case; text below other headings has no section."""

FIELDS: Mapping[str, str] = {
    "param": PARAMETER,
    "parameter": PARAMETER,
    "arg": PARAMETER,
    "argument": PARAMETER,
    "keyword": PARAMETER,
    "return": RETURN,
    "returns": RETURN,
    "raise": EXCEPTION,
    "raises": EXCEPTION,
    "except": EXCEPTION,
}
"""Sphinx's fields; the text of others (`:type x:`) is left out."""

UNDERLINE = re.compile(r"[-=~]{3,}")
GOOGLE = re.compile(r"([A-Z][A-Za-z]+(?: [A-Za-z]+)?) ?::?")
FIELD = re.compile(r":(\w+)(?: [^:]*)?:(?:\s+(.*))?$")
DIRECTIVE = re.compile(r"\.\.(?: ([\w-]+)::)?(?:\s+(.*))?$")
ITEM = re.compile(r"(?:[-*+•]|\(?\d+[.)])\s+")
NAME_AND_TYPE = re.compile(
    r"""[-*+]?\s*                        # of a list
    [*`]*\*{0,2}[\w./\\]+[*`]*           # name
    (?:\s*,\s*[*`]*[\w./\\]+[*`]*)*      # more names
    (?:\s*\((?:[^()]|\([^()]*\))*\))?    # (type)
    \s*(?::|--|\u2013)(?:\s+|$)""",
    re.VERBOSE,
)
"""The text before the description of a parameter or an exception, in Google's layout."""
TYPE = re.compile(r"(?:[^\s:]+|:\w+:`[^`]*`|`[^`]*`|\S*\((?:[^()]|\([^()]*\))*\)):(?:\s+|$)")
"""The text before the description of a return value, in Google's layout."""

PLAIN_SHARE = 0.75
"""Share of a sentence's words that must be words, not code or numbers."""
TELLING_WORDS = 8
"""Sentences with the same plain words at the beginning, this many, count as duplicates."""

RULE = re.compile(r"[^\w\s]{3,}[^\w]*")
TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
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


class Passage(NamedTuple):
    """About 30 words of a docstring."""

    library: str
    file: str  # relative to the library's root, with forward slashes
    docstring: int  # its number within the file
    text: str


class Sentence(NamedTuple):
    """A sentence of a docstring."""

    library: str
    file: str
    section: str
    text: str


def read_passages(
    roots: Mapping[str, Path],
    processes: int = 2,
    advance: Callable[[int], None] = lambda files: None,
) -> list[Passage]:
    """Read the passages of all Python files below some roots, in parallel and in a fixed order.

    Files that cannot be read or parsed (dangling links, other Python versions) are skipped.

    Args:
        roots: the directory of each library.
        processes: number of parallel processes.
        advance: receives the number of files read, after each batch.
    """
    return [Passage(*row) for row in _read_files("passages", roots, processes, advance)]


def read_sentences(
    roots: Mapping[str, Path],
    processes: int = 2,
    advance: Callable[[int], None] = lambda files: None,
) -> list[Sentence]:
    """Read the sentences of all Python files below some roots; see `read_passages`."""
    return [Sentence(*row) for row in _read_files("sentences", roots, processes, advance)]


def distinct(passages: Iterable[Passage]) -> list[Passage]:
    """Keep the first of equal passages, and none that several libraries share.

    Case, punctuation and spaces make no difference.
    """
    return _firsts_of_one_group(
        passages,
        key=lambda passage: NOT_ALPHANUMERIC.sub("", passage.text).lower(),
        group=lambda passage: passage.library,
    )


def unlike(rows: Iterable[Sentence]) -> list[Sentence]:
    """Keep the first of duplicate sentences, and none that several sections share.

    Copied documentation differs in names and endings. So sentences are duplicates if their first
    plain words are equal; names, numbers and code are not plain words.
    """

    def first_plain_words(row: Sentence) -> str:
        words = (word.strip("\"'().,:;?!") for word in row.text.split())
        plain = [word.lower() for word in words if PLAIN_WORD.fullmatch(word)]
        return " ".join(plain[:TELLING_WORDS])

    return _firsts_of_one_group(rows, key=first_plain_words, group=lambda row: row.section)


def _firsts_of_one_group(
    rows: Iterable[T], key: Callable[[T], str], group: Callable[[T], str]
) -> list[T]:
    """Keep the first of rows with the same key, and none whose key several groups share."""
    groups: defaultdict[str, set[str]] = defaultdict(set)
    firsts: dict[str, T] = {}
    for row in rows:
        name = key(row)
        groups[name].add(group(row))
        firsts.setdefault(name, row)
    return [row for name, row in firsts.items() if len(groups[name]) == 1]


def python_files(root: Path) -> list[str]:
    """Return the paths of Python files below `root`, relative and sorted, without tests."""
    relative = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(
        path.as_posix() for path in relative if SKIPPED_FOLDERS.isdisjoint(path.parts[:-1])
    )


def _read_files(
    kind: str, roots: Mapping[str, Path], processes: int, advance: Callable[[int], None]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `_rows_of` for all files, with the library's name first."""

    def read_batch(library: str, root: Path, files: Sequence[str]) -> list[list[Any]]:
        completed = subprocess.run(
            [sys.executable, "-I", "-S", __file__, kind, str(root)],
            input=json.dumps(files).encode(),
            capture_output=True,
            check=False,
        )
        if completed.returncode:
            errors = completed.stderr.decode(errors="replace")
            raise RuntimeError(f"reading {library} failed: {errors}")
        return [[library, *row] for row in json.loads(completed.stdout)]

    batches = [
        (library, root, batch)
        for library, root in roots.items()
        for batch in _batches(python_files(root), FILES_A_BATCH)
    ]
    executor = ThreadPoolExecutor(max_workers=processes)  # each thread waits for a process
    try:
        results = executor.map(lambda each: read_batch(*each), batches)
        for (*_, files), rows in zip(batches, results, strict=True):
            yield from map(tuple, rows)
            advance(len(files))
    finally:
        executor.shutdown(cancel_futures=True)


def _batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a Python file; none if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            yield text.encode(errors="replace").decode()  # an escape can stand for half a character


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without expressions, which are most of it and define nothing."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _statements(child)


def prose(docstring: str) -> list[str]:
    """Return the words of a docstring without code blocks, doctests, their output, underlines."""
    lines = map(str.strip, _without_code(docstring.splitlines(), (">>>",)))
    return [word for line in lines if not RULE.fullmatch(line) for word in line.split()]


def _without_code(lines: Sequence[str], prompts: tuple[str, ...]) -> list[str]:
    """Return the lines, with doctests, their output and fenced code replaced by empty lines."""
    remaining = []
    fenced = in_doctest = False
    for line in lines:
        stripped = line.strip()
        in_doctest = stripped.startswith(prompts) or (in_doctest and stripped != "")
        fence = stripped.startswith("```")
        remaining.append("" if fence or fenced or in_doctest else line.rstrip())
        fenced ^= fence
    return remaining


def cut(words: Sequence[str]) -> Iterator[str]:
    """Yield chunks of LONGEST_WORDS words, without short remainders and tables of symbols."""
    for some in _batches(words, LONGEST_WORDS):
        readable = sum(TWO_LETTERS.search(word) is not None for word in some)
        if len(some) >= SHORTEST_PASSAGE and readable >= len(some) / 2:
            yield " ".join(some)


def labelled_sentences(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield section and text of the readable sentences.

    These are all sentences of a note. Of any other paragraph only the first is taken, which
    describes the item; later sentences add to it in words that would fit every section.
    """
    for section, paragraph in read_sections(docstring):
        parts = sentences(paragraph)
        for sentence in parts if section == NOTE else (next(parts, None),):
            if sentence is not None:
                yield section, sentence


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph with 5 to 30 words, most of them plain English.

    Markup and the full stop are left out.
    """
    text = ROLE.sub(lambda match: (match[1] or "").lstrip("~!."), paragraph)
    text = LINK.sub(lambda match: match[1] or match[2] or "", text)
    text = REFERENCE.sub(r"\1", CITATION.sub("", text))
    for sentence in END.split(MARKUP.sub("", text).strip()):
        words = sentence.split()
        plain = sum(WORD.fullmatch(word) is not None for word in words)
        readable = plain >= PLAIN_SHARE * len(words) and not ODD.search(sentence)
        if readable and SHORTEST_SENTENCE <= len(words) <= LONGEST_WORDS:
            yield sentence.rstrip(" .:;,")


def read_sections(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield section and text of each paragraph in a known section, on one line."""
    lines = _without_code(docstring.expandtabs().splitlines(), (">>>", "In ["))
    start = next((number for number, line in enumerate(lines) if line), len(lines))
    end = start
    while end < len(lines) and lines[end] and not _opening(lines, end):
        end += 1
    yield SUMMARY, " ".join(map(str.strip, lines[start:end]))
    while end < len(lines):
        opening = _opening(lines, end)
        if opening is None:
            end += 1
            continue
        end = opening.end
        if opening.section is not None:
            for paragraph in _paragraphs(LAYOUTS[opening.layout](opening.section, opening.lines)):
                yield opening.section, paragraph


class _Opening(NamedTuple):
    """A section that begins at a line."""

    section: str | None
    """None for an unknown section."""
    layout: str
    lines: list[str]
    """The lines without the heading."""
    end: int
    """Line where the next section begins."""


def _opening(lines: Sequence[str], position: int) -> _Opening | None:
    """Return the section that begins at a line, or None."""
    line = lines[position].strip()
    if _is_underlined(lines, position):
        start = end = position + 2
        while end < len(lines) and not _is_underlined(lines, end):
            end += 1
        section = HEADINGS.get(line.rstrip(":").lower())
        return _Opening(section, "numpydoc", list(lines[start:end]), end)
    end = _end_of_indented(lines, position)
    if (match := GOOGLE.fullmatch(line)) and end > position + 1:
        section = HEADINGS.get(match[1].lower())
        return _Opening(section, "google", list(lines[position + 1 : end]), end)
    if match := FIELD.fullmatch(line):
        end = _end_of_indented(lines, position, over_empty=False)
        section = FIELDS.get(match[1])
    elif match := DIRECTIVE.fullmatch(line):
        section = NOTE if match[1] == "note" else None
    else:
        return None
    return _Opening(section, "plain", [match[2] or "", *lines[position + 1 : end]], end)


def _is_underlined(lines: Sequence[str], position: int) -> bool:
    below = lines[position + 1].strip() if position + 1 < len(lines) else ""
    return bool(lines[position].strip() and UNDERLINE.fullmatch(below))


def _end_of_indented(lines: Sequence[str], position: int, *, over_empty: bool = True) -> int:
    """Return the end of the lines that are indented more than the line at `position`."""
    base = _indent(lines[position])
    end = last = position + 1
    while end < len(lines) and (_indent(lines[end]) > base if lines[end] else over_empty):
        end += 1
        last = end if lines[end - 1] else last
    return last


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented_only(section: str, block: list[str]) -> list[str]:
    """Return the descriptions below lines with names and types; all lines for notes."""
    if section == NOTE:
        return _plain(section, block)
    base = min((_indent(line) for line in block if line), default=0)
    return ["" if _indent(line) == base else line for line in block]


def _after_heads(section: str, block: list[str]) -> list[str]:
    """Return the descriptions after names and types, on the same line or below."""
    if section == NOTE:
        return _plain(section, block)
    base = min((_indent(line) for line in block if line), default=0)
    lines: list[str] = []
    for line in block:
        if not line or _indent(line) != base:
            lines.append(line)
            continue
        line = line.strip()
        head = (TYPE if section == RETURN else NAME_AND_TYPE).match(line)
        without_name = line if section == RETURN else ""
        lines += ["", line[head.end() :] if head else without_name]
    return lines


def _plain(section: str, block: list[str]) -> list[str]:
    """Return the lines outside directives (of code, formulas, versions) in a block."""
    lines: list[str] = []
    position = 0
    while position < len(block):
        if DIRECTIVE.fullmatch(block[position].strip()):
            position = _end_of_indented(block, position)
            lines.append("")
        else:
            lines.append(block[position])
            position += 1
    return lines


LAYOUTS: Mapping[str, Callable[[str, list[str]], list[str]]] = {
    "numpydoc": _indented_only,
    "google": _after_heads,
    "plain": _plain,
}


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Yield each run of lines as one line; an empty line or a list item ends a run."""
    words: list[str] = []
    for line in (*map(str.strip, lines), ""):
        item = ITEM.match(line)
        if not line or item:
            if words:
                yield " ".join(words)
            words = []
        if line:
            words.append(line[item.end() :] if item else line)


def _rows_of(kind: str, root: Path, file: str) -> Iterator[tuple[Any, ...]]:
    """Yield the passages or sentences of a file; none if it cannot be read or parsed."""
    try:
        source = (root / file).read_bytes()
    except OSError:
        return
    for number, docstring in enumerate(docstrings(source)):
        if kind == "passages":
            yield from ((file, number, text) for text in cut(prose(docstring)))
        else:
            yield from ((file, section, text) for section, text in labelled_sentences(docstring))


if __name__ == "__main__":
    _, kind, root = sys.argv
    files = json.load(sys.stdin)
    json.dump([row for file in files for row in _rows_of(kind, Path(root), file)], sys.stdout)
