"""What others have written is shown on a terminal, and does nothing to it."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable

import pytest
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from bertender.core.progress import SafeConsole, visible

CLEAR = "\x1b[2J"
TITLE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    "text",
    [
        "über, 漢字",
        "no-break\u00a0space, wide\u3000space",
        "\U0001f468\u200d\U0001f469",
        "می\u200cخ",
    ],
)
def test_texts_of_any_language_are_shown_as_they_are(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"a{CLEAR}b", r"a\x1b[2Jb"),
        ("a\rb\nc\td", r"a\rb\nc\td"),
        ("a\x7f\x9b31m", r"a\x7f\x9b31m"),
        ("\u202etxt\u2028", r"\u202etxt\u2028"),
        ("half \ud83d", r"half \ud83d"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


STYLE = re.compile(r"\x1b\[[0-9;]*m")


def printed(show: Callable[[SafeConsole], object], *, terminal: bool) -> str:
    """Return what is printed, without rich's own codes."""
    file = io.StringIO()
    show(SafeConsole(file=file, force_terminal=terminal, width=80))
    assert terminal or not STYLE.search(file.getvalue())
    return STYLE.sub("", file.getvalue())


def table(console: SafeConsole) -> None:
    made = Table("name", title=Text(f"title {TITLE}"))
    made.add_row(Text(f"row {CLEAR}"))
    console.print(made)


def log(console: SafeConsole) -> None:
    handler = RichHandler(console=console, show_path=False)
    handler.emit(logging.LogRecord("x", logging.WARNING, "x", 1, f"name {CLEAR}", None, None))


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "show", [table, log, lambda console: console.print(Text(f"words {CLEAR}", style="bold"))]
)
def test_a_console_obeys_its_own_codes_alone(
    show: Callable[[SafeConsole], object], terminal: bool
) -> None:
    output = printed(show, terminal=terminal)
    assert "\\x1b" in output and "\x1b" not in output and "\x07" not in output
