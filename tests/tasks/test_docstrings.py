"""Docstrings of small trees made here: passages, sections in three layouts, and sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bertender.tasks.docstrings import (
    LONGEST_WORDS,
    SECTIONS,
    SHORTEST_PASSAGE,
    SHORTEST_SENTENCE,
    Passage,
    Sentence,
    cut,
    distinct,
    docstrings,
    labelled_sentences,
    prose,
    python_files,
    read_passages,
    read_sections,
    read_sentences,
    sentences,
    unlike,
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
        (SHORTEST_PASSAGE - 1, []),
        (SHORTEST_PASSAGE, [SHORTEST_PASSAGE]),
        (LONGEST_WORDS, [LONGEST_WORDS]),
        (LONGEST_WORDS + SHORTEST_PASSAGE - 1, [LONGEST_WORDS]),
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
        "from pathlib import Path\nfrom bertender.tasks.docstrings import read_passages\n"
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


NUMPYDOC = """
Pour the beer
into a glass.

An extended description that belongs to no section.

Parameters
----------
glass : Glass, default: None
    Where the beer goes.
speed, angle : float
    How it is
    poured.

    Ignored when the glass is full.

Returns
-------
foam : ndarray of shape (n_glasses,)
    The height of the foam.

Raises
------
ValueError
    If the glass is upside down.

See Also
--------
drink : Empty the glass.

Notes
-----
The angle matters [1]_.

.. math:: a = b

.. versionadded:: 1.2
   Pouring sideways.

- Cold glasses foam less.

Examples
--------
Pour one out:

>>> pour(glass)
Foam(3)
"""

GOOGLE = """Pour the beer into a glass.

    Args:
        glass (`Glass`, *optional*, defaults to `None`):
            Where the beer goes.
        speed (dict(str, float)): How it is
            poured.
        *args: More of it.

    Returns:
        `Foam`: The height of the foam.

    Raises:
        ValueError: If the glass is upside down.

    .. note::
        The angle matters.

    Note:
        Cold glasses foam less.

    Example::

        pour(glass)

    Attributes:
        level (int): How full it is.
"""

SPHINX = """
Pour the beer into a glass.
:param glass: Where the beer goes.
:type glass: Glass
:param float speed: How it is
    poured.
:returns: The height of the foam.
:rtype: Foam
:raises ValueError: If the glass is upside down.

.. note:: The angle matters.

Closing words of no section.
"""

SHARED = {
    ("summary", "Pour the beer into a glass."),
    ("parameter", "Where the beer goes."),
    ("parameter", "How it is poured."),
    ("return value", "The height of the foam."),
    ("exception", "If the glass is upside down."),
}


@pytest.mark.parametrize(
    ("docstring", "more"),
    [
        (
            NUMPYDOC,
            {
                ("parameter", "Ignored when the glass is full."),
                ("note", "The angle matters [1]_."),
                ("note", "Cold glasses foam less."),
            },
        ),
        (
            GOOGLE,
            {
                ("parameter", "More of it."),
                ("note", "The angle matters."),
                ("note", "Cold glasses foam less."),
            },
        ),
        (SPHINX, {("note", "The angle matters.")}),
    ],
    ids=["numpydoc", "google", "sphinx"],
)
def test_a_layout(docstring: str, more: set[tuple[str, str]]) -> None:
    found = list(read_sections(docstring))
    assert set(found) == SHARED | more
    assert len(found) == len(set(found))
    assert {section for section, _ in found} == set(SECTIONS)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("", [("summary", "")]),
        ("One line.", [("summary", "One line.")]),
        ("Args:\nnothing indented", [("summary", "Args: nothing indented")]),
        (
            "Parameters\n----------\nx : int\n    Its size.",
            [("summary", ""), ("parameter", "Its size.")],
        ),
        (
            "A.\n\nArgs:\n    no colon in this line\n    x: Its size.",
            [("summary", "A."), ("parameter", "Its size.")],
        ),
        (
            "A.\n\nReturns:\n    A tensor of: two, three",
            [("summary", "A."), ("return value", "A tensor of: two, three")],
        ),
        (
            "A.\n\nNote:\n    One.\n\n    ```\n    code()\n    ```\n    Two.",
            [("summary", "A."), ("note", "One."), ("note", "Two.")],
        ),
        ("A.\n\nUnknown:\n    Left out.\n\nNote:\n    In.", [("summary", "A."), ("note", "In.")]),
        ("A.\n\n.. deprecated:: 2\n   Left out.\n\n.. a comment", [("summary", "A.")]),
        (":param x: Its size.\n:return", [("summary", ""), ("parameter", "Its size.")]),
    ],
)
def test_edges(docstring: str, expected: list[tuple[str, str]]) -> None:
    assert list(read_sections(docstring)) == expected


def beer(count: int) -> str:
    return " ".join(["beer"] * count)


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (SHORTEST_SENTENCE - 1, 0),
        (SHORTEST_SENTENCE, 1),
        (LONGEST_WORDS, 1),
        (LONGEST_WORDS + 1, 0),
    ],
)
def test_lengths_of_sentences(count: int, found: int) -> None:
    assert list(sentences(beer(count))) == [beer(count)] * found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "The :class:`~beer.Glass` of ``x`` is *very* **full**.",
            "The beer.Glass of x is very full",
        ),
        (
            "The `~beer.Glass` is full, see [`Foam`] for that",
            "The ~beer.Glass is full, see Foam for that",
        ),
        (
            "Read `the menu <https://beer>`_ or [the list](https://list) first",
            "Read the menu or the list first",
        ),
        ("Foam as Guinness describes it [1]_, [2]", "Foam as Guinness describes it"),
        ("Values in [0, 1] are shares of a glass", "Values in [0, 1] are shares of a glass"),
    ],
)
def test_markup_is_left_out(text: str, expected: str) -> None:
    assert list(sentences(text)) == [expected]


def test_sentences_end_where_the_next_begins() -> None:
    text = "The beer has little foam, e.g. This one here. Is that the one? It is 4.5 degrees cold."
    assert list(sentences(text)) == [
        "The beer has little foam, e.g. This one here",
        "It is 4.5 degrees cold",
    ]


@pytest.mark.parametrize(
    "text",
    ["x = y + 2 * z - 1 / w", "see https://beer.example for all of it", "|a|b| of the table"],
)
def test_what_cannot_be_read_is_dropped(text: str) -> None:
    assert list(sentences(text)) == []


def test_only_notes_speak_at_length() -> None:
    docstring = """Pour the beer into a glass. Then drink all of it.

Args:
    glass: Where the beer is poured to. It should be clean and cold.

Note:
    The angle matters a lot here. Cold glasses foam far less."""
    assert list(labelled_sentences(docstring)) == [
        ("summary", "Pour the beer into a glass"),
        ("parameter", "Where the beer is poured to"),
        ("note", "The angle matters a lot here"),
        ("note", "Cold glasses foam far less"),
    ]


def test_alike() -> None:
    begin = "whether the beer is poured into the glass"
    rows = [
        Sentence("a", "1.py", "parameter", f"{begin} of Alice"),
        Sentence(
            "a",
            "2.py",
            "parameter",
            f"Whether the BEER_2 beer is poured into the glass of {beer(3)}",
        ),
        Sentence("a", "2.py", "note", "What two sections say, all"),
        Sentence("b", "1.py", "summary", "what two sections say all"),
        Sentence("b", "1.py", "summary", "What one section says only"),
    ]
    assert unlike(rows) == [rows[0], rows[4]]


def test_files_are_read_in_parallel(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Pour the beer into a glass.\n\nNote:\n    It foams a lot here.\n"""'
    )
    (tmp_path / "b.py").write_text("def broken(:")
    (tmp_path / "c.py").symlink_to(tmp_path / "gone.py")
    done: list[int] = []
    assert read_sentences({"x": tmp_path}, 2, done.append) == [
        Sentence("x", "a.py", "summary", "Pour the beer into a glass"),
        Sentence("x", "a.py", "note", "It foams a lot here"),
    ]
    assert done == [3]
