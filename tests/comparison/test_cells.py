"""Short numbers, dashes, Markdown."""

from __future__ import annotations

import pytest

from bertender.comparison.table import DASH, markdown_rows, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (0.0, "0.00"),
        (0.0471, "0.047"),
        (0.000123, "0.00012"),
        (0.21, "0.21"),
        (9.951, "9.95"),
        (9.999, "10.0"),
        (22.7, "22.7"),
        (99.96, "100"),
        (1234.5, "1234"),
    ],
)
def test_short_numbers(value: float | None, text: str) -> None:
    assert short(value) == text


def test_markdown_rows_align_numbers_and_escape_bars() -> None:
    lines = markdown_rows([("Name",), ("Score", "x")], [[("a|b",), ("1", "[0, 2]")]], [False, True])
    assert lines == ["| Name | Score x |", "| --- | ---: |", "| a\\|b | 1 [0, 2] |"]
