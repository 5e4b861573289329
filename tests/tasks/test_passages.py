"""Docstrings of small trees made here: what is read, what is left out, how it is cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bertender.tasks.passages import (
    LONGEST_WORDS,
    SHORTEST_WORDS,
    Passage,
    cut,
    distinct,
    docstrings,
    prose,
    python_files,
    read_passages,
)


def words(count: int, prefix: str = "word") -> str:
    return " ".join(f"{prefix}{number}" for number in range(count))


def test_docstrings_in_the_order_of_the_source() -> None:
    source = '''"""Module."""
import gone_and_never_imported
if True:
    try:
        class A:
            """Class."""
            def f(self):
                """Method."""
                "no docstring"
    except ImportError:
        async def g():
            """Handler."""
def h():
    return "no docstring"
'''
    found = [text for text in docstrings(source.encode()) if text]
    assert found == ["Module.", "Class.", "Method.", "Handler."]


@pytest.mark.parametrize(
    "source", [b"def broken(:", b'"""caf\xe9"""', b'"""nul"""\0', b"(" * 5000], ids=repr
)
def test_files_that_cannot_be_parsed_have_none(source: bytes) -> None:
    assert list(docstrings(source)) == []


def test_half_characters_are_replaced() -> None:
    assert list(docstrings(rb'"""a\ud800b"""')) == ["a?b"]


def test_another_declared_encoding_is_read() -> None:
    assert list(docstrings(b'# coding: latin-1\n"""caf\xe9"""')) == ["café"]


def test_prose_leaves_out_code() -> None:
    docstring = """Heading
    =======

    Adds    numbers.

    >>> add(1,
    ...     2)
    3
    Still output.

    ... is an ellipsis here.

    ```python
    x = add(1, 2)

    print(x)
    ```
    +-----+-----+
    The end.
    """
    expected = "Heading Adds numbers. ... is an ellipsis here. The end."
    assert " ".join(prose(docstring)) == expected


@pytest.mark.parametrize(
    ("count", "lengths"),
    [
        (SHORTEST_WORDS - 1, []),
        (SHORTEST_WORDS, [SHORTEST_WORDS]),
        (LONGEST_WORDS, [LONGEST_WORDS]),
        (LONGEST_WORDS + SHORTEST_WORDS - 1, [LONGEST_WORDS]),
        (2 * LONGEST_WORDS + 20, [LONGEST_WORDS, LONGEST_WORDS, 20]),
    ],
)
def test_lengths_of_pieces(count: int, lengths: list[int]) -> None:
    pieces = list(cut(words(count).split()))
    assert [len(piece.split()) for piece in pieces] == lengths
    assert words(count).startswith(" ".join(pieces))


def test_tables_of_symbols_are_dropped() -> None:
    assert list(cut(["0.5"] * 16 + ["word"] * 14)) == []
    assert len(list(cut(["0.5"] * 15 + ["word"] * 15))) == 1


def test_duplicates() -> None:
    shared, own, other = "What they share, all.", "Only its own.", "Of the other."
    passages = [
        Passage("a", "1.py", 0, shared),
        Passage("a", "1.py", 1, own),
        Passage("a", "2.py", 0, "only ITS  own"),
        Passage("b", "1.py", 0, "what they share all"),
        Passage("b", "1.py", 1, other),
    ]
    assert distinct(passages) == [passages[1], passages[4]]


def test_files_of_a_tree(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.py", "a/tests/d.py", "site-packages/e.py", "test/f.py", "g.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert python_files(tmp_path) == ["a/c.py", "b.py"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text(
        f'"""{words(40)}"""\ndef f():\n    r"""{words(20, "other")} \\d"""'
    )
    (tmp_path / "b.py").write_bytes(f'"""{words(20)} caf\xe9"""'.encode("latin-1"))
    (tmp_path / "c.py").write_text("def broken(:")
    return tmp_path


def test_reading_in_parallel(tree: Path) -> None:
    done: list[int] = []
    found = read_passages({"x": tree, "y": tree}, processes=2, advance=done.append)
    assert found == [
        Passage(library, "a.py", number, text)
        for library in "xy"
        for number, text in ((0, words(30)), (1, words(20, "other") + " \\d"))
    ]
    assert sum(done) == 6


def test_a_script_needs_no_main_guard(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("script") / "script.py"
    script.write_text(
        "from pathlib import Path\nfrom bertender.tasks.passages import read_passages\n"
        f"print(len(read_passages({{'x': Path({str(tree)!r})}})))\n"
    )
    answer = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout == "2\n"


def test_dangling_links_are_left_out(tree: Path) -> None:
    (tree / "d.py").symlink_to(tree / "gone.py")
    assert len(read_passages({"x": tree})) == 2


def test_a_failing_reader_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RuntimeError, match="reading x failed"):
        read_passages({"x": tree})
