"""The table of Triton's advisories, as Markdown: those that the installed server predates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.report.cells import Cell, markdown_rows
from serve.advisories import AS_OF, CRITICAL_SCORE, Advisory, predated, short_names
from serve.installation import WHEEL_VERSIONS

__all__ = ["advisories_block"]

HEADINGS: tuple[Cell, ...] = (("Fixed in",), ("Release",), ("Critical",), ("Others",))


def advisories_block(files: Mapping[str, Path]) -> str:
    """Return a row for each release that fixes what the newest server of a wheel has."""
    version = list(WHEEL_VERSIONS.values())[-1]
    missing = predated(version)
    releases = dict.fromkeys(advisory.release for advisory in missing)
    rows = [_row([each for each in missing if each.release == release]) for release in releases]
    sentence = (
        f"The server of the extra `serve` is Triton {version}. It predates the fixes of "
        f"{len(missing)} advisories, of those known as of {AS_OF}:"
    )
    table = markdown_rows(HEADINGS, rows, [False] * len(HEADINGS))
    return "\n".join([sentence, "", *table, ""])


def _row(advisories: Sequence[Advisory]) -> tuple[Cell, ...]:
    """Return the row of the advisories of one release."""
    critical = [each for each in advisories if each.score >= CRITICAL_SCORE]
    others = [each for each in advisories if each.score < CRITICAL_SCORE]
    named = "; ".join(f"{each.name} ({each.score}): {each.fault}" for each in critical)
    first = advisories[0]
    return (first.fixed_in,), (first.release,), (named or "-",), (short_names(others) or "-",)
