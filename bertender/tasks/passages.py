"""Passages of documentation: the docstrings of Python files, cut into parts of at most 30 words."""

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
SHORTEST_WORDS = 15
FILES_A_BATCH = 100

PACKAGES = Path(__file__).parents[2]
READER = (
    "import runpy, sys; sys.path.append(sys.argv[1]); "
    "runpy.run_module(sys.argv[2], run_name='__main__')"
)
"""The program of a reading process, without site packages: a module here, run as a script."""
SKIPPED_FOLDERS = frozenset({"test", "tests", "site-packages", "dist-packages", "__pycache__"})

UNDERLINE = re.compile(r"[^\w\s]{3,}[^\w]*")
TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


class Passage(NamedTuple):
    """Some 30 words of one docstring."""

    library: str
    file: str  # relative to the library's root, with forward slashes
    docstring: int  # its number within the file
    text: str


Row = tuple[Any, ...]
"""A reader module's result of a file, in plain values."""


def read_passages(
    roots: Mapping[str, Path],
    processes: int = 2,
    advance: Callable[[int], None] = lambda files: None,
) -> list[Passage]:
    """Read the passages of all Python files below some roots; arguments as in `read_files`."""
    return [Passage(*row) for row in read_files(__name__, roots, processes, advance)]


def read_files(
    module: str,
    roots: Mapping[str, Path],
    processes: int = 2,
    advance: Callable[[int], None] = lambda files: None,
) -> Iterator[Row]:
    """Yield the rows of all Python files below some roots, read in parallel, in a fixed order.

    Files that cannot be read or parsed (dangling links, other Python versions) are left out.

    Args:
        module: what reads them: its main part calls `write_rows`.
        roots: the directory of each library, whose name is put before each row.
        processes: how many read at a time.
        advance: receives the number of files done, after each batch of them.
    """
    arguments = [
        (module, library, root, batch)
        for library, root in roots.items()
        for batch in _batches(python_files(root), FILES_A_BATCH)
    ]
    executor = ThreadPoolExecutor(max_workers=processes)  # each thread waits for a process
    try:
        batches = executor.map(lambda each: _read_batch(*each), arguments)
        for (*_, files), rows in zip(arguments, batches, strict=True):
            yield from rows
            advance(len(files))
    finally:
        executor.shutdown(cancel_futures=True)


def distinct(passages: Iterable[Passage]) -> list[Passage]:
    """Keep the first of equal passages, and none of those that several libraries share.

    Case, punctuation and spaces make no difference.
    """
    return firsts_of_one_group(
        passages,
        key=lambda passage: NOT_ALPHANUMERIC.sub("", passage.text).lower(),
        group=lambda passage: passage.library,
    )


def firsts_of_one_group(
    rows: Iterable[T], key: Callable[[T], str], group: Callable[[T], str]
) -> list[T]:
    """Keep the first of rows with the same key, and none of those that several groups share."""
    groups: defaultdict[str, set[str]] = defaultdict(set)
    firsts: dict[str, T] = {}
    for row in rows:
        name = key(row)
        groups[name].add(group(row))
        firsts.setdefault(name, row)
    return [row for name, row in firsts.items() if len(groups[name]) == 1]


def python_files(root: Path) -> list[str]:
    """Return the Python files below `root`, relative to it and sorted; tests are left out."""
    relative = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(
        path.as_posix() for path in relative if SKIPPED_FOLDERS.isdisjoint(path.parts[:-1])
    )


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a Python file; none when it cannot be parsed."""
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


def prose(docstring: str) -> list[str]:
    """Return the words of a docstring without code blocks, doctests, their output, underlines."""
    words: list[str] = []
    fenced = in_doctest = False
    for line in map(str.strip, docstring.splitlines()):
        in_doctest = line.startswith(">>>") or (in_doctest and line != "")
        if line.startswith("```"):
            fenced = not fenced
        elif not (fenced or in_doctest or UNDERLINE.fullmatch(line)):
            words.extend(line.split())
    return words


def cut(words: Sequence[str]) -> Iterator[str]:
    """Yield parts of LONGEST_WORDS words, without short remainders and tables of symbols."""
    for some in _batches(words, LONGEST_WORDS):
        readable = sum(TWO_LETTERS.search(word) is not None for word in some)
        if len(some) >= SHORTEST_WORDS and readable >= len(some) / 2:
            yield " ".join(some)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, but not into expressions: they are most of it, and define nothing."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _statements(child)


def _batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _read_batch(module: str, library: str, root: Path, files: Sequence[str]) -> list[Row]:
    """Read some files in a process of its own."""
    completed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", READER, str(PACKAGES), module, str(root)],
        input=json.dumps(files).encode(),
        capture_output=True,
        check=False,
    )
    if completed.returncode:
        raise RuntimeError(f"reading {library} failed: {completed.stderr.decode(errors='replace')}")
    return [(library, *row) for row in json.loads(completed.stdout)]


def docstrings_of(root: Path, file: str) -> Iterator[str]:
    """Yield the docstrings of a file; none when it cannot be read or parsed."""
    try:
        source = (root / file).read_bytes()
    except OSError:
        return
    yield from docstrings(source)


def _passages_of(root: Path, file: str) -> Iterator[Row]:
    for number, docstring in enumerate(docstrings_of(root, file)):
        for text in cut(prose(docstring)):
            yield file, number, text


def write_rows(read: Callable[[Path, str], Iterator[Row]]) -> None:
    """Read the files that standard input names below the root of the command line."""
    root = Path(sys.argv[-1])
    json.dump([row for file in json.load(sys.stdin) for row in read(root, file)], sys.stdout)


if __name__ == "__main__":
    write_rows(_passages_of)
