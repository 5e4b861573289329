"""The parity table: each arrangement of the texts, the figures with their bounds, the failures."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from bertender.measure.parity import CaseParity, Parity
from bertender.report.cells import DASH, captioned_table, markdown_rows

__all__ = ["markdown_parity", "parity_lines", "parity_table"]

HEADINGS = ("Arrangement", "Answers", "Max difference", "Agreement")


def parity_table(parity: Parity) -> Table:
    """Render a Parity for a terminal."""
    table = captioned_table(parity_lines(parity))
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if index else "left")
    for case in parity.cases:
        table.add_row(*map(Text, _cells(case)))
    return table


def markdown_parity(parity: Parity) -> str:
    """Render a Parity in Markdown."""
    title, *notes = parity_lines(parity)
    rows = [[(cell,) for cell in _cells(case)] for case in parity.cases]
    lines = markdown_rows([(title,) for title in HEADINGS], rows, [False, True, True, True])
    return "\n".join([f"**{title}**", "", *lines, "", *(f"- {note}" for note in notes), ""])


def parity_lines(parity: Parity) -> list[str]:
    """Return the verdict, the figures over all arrangements with their bounds, every failure."""
    tolerance = parity.tolerance
    verdict = "passed" if parity.passed else f"FAILED, {len(parity.failures)} failures"
    return [
        f"parity of {parity.candidate} with {parity.reference}: {verdict}",
        f"{parity.texts} texts, {parity.rows} answers; "
        f"largest reference logit {_figure(parity.logit_scale)}",
        f"difference {_figure(parity.max_abs_difference)} at most "
        f"(allowed {_bound(parity, tolerance.max_abs)}), "
        f"{_figure(parity.mean_abs_difference)} on average in the worst arrangement "
        f"(allowed {_bound(parity, tolerance.mean_abs)}); "
        f"cosine {_figure(parity.min_cosine)} at least (allowed {tolerance.min_cosine:g})",
        f"agreement {_figure(parity.agreement)} of all answers; without near-ties "
        f"{_figure(parity.decided_agreement)} in the worst arrangement "
        f"(allowed {tolerance.min_agreement:g})",
        *(f"failed: {failure}" for failure in parity.failures),
    ]


def _cells(case: CaseParity) -> tuple[str, ...]:
    return (
        case.name,
        str(case.rows) if case.rows else DASH,
        _figure(case.max_abs_difference),
        _figure(case.agreement),
    )


def _bound(parity: Parity, share: float) -> str:
    return _figure(None if parity.logit_scale is None else share * parity.logit_scale)


def _figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.4g}"
