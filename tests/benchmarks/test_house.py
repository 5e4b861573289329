"""Figures of the source tree and of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import house
from benchmarks.house import Source

SOURCE = '''"""A module."""

SIZE = 3
"""An attribute,
over two lines."""
NAMES = (
    """a text""",
)


class Row:
    """A row."""

    value: int = SIZE
    """A field."""

    def first(self) -> str:
        """Return a text."""
        found = """a text
        of two lines"""
        """A string in a function documents no attribute."""
        return found  # a comment


class Protocol:
    def method(self) -> None: ...
'''
CODE = (3, 6, 7, 8, 11, 14, 17, 19, 20, 21, 22, 25, 26)


def test_docstrings_are_not_code(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    assert sorted(Source(file).code_lines) == [*CODE]


def score_one_text(folder: Path, profile: house.Profile) -> None:
    from bertender.metrics import score

    score("accuracy", [0, 1], [0, 1])


@pytest.mark.slow
def test_files_are_executed_by_functions_and_not_by_imports(tmp_path: Path) -> None:
    files = house.executed(score_one_text, tmp_path)
    assert "bertender/metrics/labels.py" in files
    assert not {"bertender/__init__.py", "bertender/core/errors.py"} & files
