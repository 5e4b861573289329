"""Sentences of docstrings: how they are cut and cleaned, and which count as alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.tasks.sentences import (
    LONGEST_WORDS,
    SHORTEST_WORDS,
    Sentence,
    labelled_sentences,
    read_sentences,
    sentences,
    unlike,
)


def words(count: int) -> str:
    return " ".join(["beer"] * count)


@pytest.mark.parametrize(
    ("count", "found"),
    [(SHORTEST_WORDS - 1, 0), (SHORTEST_WORDS, 1), (LONGEST_WORDS, 1), (LONGEST_WORDS + 1, 0)],
)
def test_lengths(count: int, found: int) -> None:
    assert list(sentences(words(count))) == [words(count)] * found


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
            f"Whether the BEER_2 beer is poured into the glass of {words(3)}",
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
