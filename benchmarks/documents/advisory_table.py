"""The table of Triton's advisories, as Markdown: those that the installed server predates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bertender.report.cells import Cell, markdown_rows
from serve.advisories import predated
from serve.installation import WHEEL_VERSIONS

__all__ = ["advisories_block"]

HEADINGS: tuple[Cell, ...] = (("Advisory",), ("Fault",), ("Fixed in",), ("Release",))


def advisories_block(files: Mapping[str, Path]) -> str:
    """Return a row for each advisory that the newest server of a wheel predates."""
    version = list(WHEEL_VERSIONS.values())[-1]
    rows = [
        ((row.name,), (row.fault,), (row.fixed_in,), (row.release,)) for row in predated(version)
    ]
    sentence = (
        f"The server of the extra `serve` is Triton {version}. It predates the fixes of these "
        "advisories:"
    )
    table = markdown_rows(HEADINGS, rows, [False] * len(HEADINGS))
    return "\n".join([sentence, "", *table, ""])
