"""The table of the rules of `bertender lint-repository`, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertender.report.cells import Cell, markdown_rows
from serve.lint.rules import LINT_RULES

__all__ = ["lint_rules_block"]

HEADINGS: tuple[Cell, ...] = (("Rule",), ("What holds",), ("Where not",))


def lint_rules_block(files: Mapping[str, Path]) -> str:
    """Return a row for each rule."""
    rows = [
        ((f"`{name}`",), (rule.summary,), (rule.severity,)) for name, rule in LINT_RULES.items()
    ]
    return "\n".join([*markdown_rows(HEADINGS, rows, [False] * len(HEADINGS)), ""])
