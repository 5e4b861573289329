"""The parity table: each arrangement of the texts, the figures with their bounds, the failures."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from bertender.comparison.cells import DASH, captioned_table, markdown_rows
from bertender.gate.judge import CaseParity, Parity
from bertender.models.runtimes import RUNTIMES

HEADINGS = ("Arrangement", "Predictions", "Max difference", "Agreement")


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
    """Return the verdict, what is judged with its bounds, and every failure."""
    verdict = "passed" if parity.passed else f"FAILED, {len(parity.failures)} failures"
    return [
        f"parity of {parity.candidate} with {parity.reference}: {verdict}",
        f"{parity.texts} texts, {parity.rows} predictions{_where(parity.runtime)}; "
        f"largest reference logit {_figure(parity.logit_scale)}, "
        f"spread over texts {_figure(parity.logit_spread)}",
        *_single_logits(parity),
        *_distribution(parity),
        *_shift(parity),
        f"agreement {_figure(parity.agreement)} of all predictions; without near-ties "
        f"{_figure(parity.decided_agreement)} in the worst arrangement, "
        f"{_figure(parity.decided_agreement_high)} at best "
        f"(allowed {parity.tolerance.min_agreement:g}); near-ties: {_figure(parity.near_ties)}, "
        f"turned {_figure(parity.near_ties_turned)}",
        *_score(parity),
        *_compared(parity),
        *(f"failed: {failure}" for failure in parity.failures),
    ]


def _where(runtime: str | None) -> str:
    return f" in {RUNTIMES[runtime].title}" if runtime else ""


def _single_logits(parity: Parity) -> Iterator[str]:
    tolerance = parity.tolerance
    if tolerance.max_abs is None or tolerance.mean_abs is None or tolerance.min_cosine is None:
        return
    yield (
        f"difference {_figure(parity.max_abs_difference)} at most "
        f"(allowed {_bound(parity, tolerance.max_abs)}), "
        f"{_figure(parity.mean_abs_difference)} on average in the worst arrangement "
        f"(allowed {_bound(parity, tolerance.mean_abs)}); "
        f"cosine {_figure(parity.min_cosine)} at least (allowed {tolerance.min_cosine:g})"
    )


def _distribution(parity: Parity) -> Iterator[str]:
    tolerance = parity.tolerance
    if tolerance.max_median is None or tolerance.max_p95 is None or tolerance.max_edge is None:
        return
    yield (
        f"difference in spreads: median text {_figure(parity.median_difference)}, "
        f"{_figure(parity.median_difference_low)} at best (allowed {tolerance.max_median:g}), "
        f"95th percentile {_figure(parity.p95_difference)}, "
        f"{_figure(parity.p95_difference_low)} at best (allowed {tolerance.max_p95:g}), "
        f"edge texts {_figure(parity.edge_difference)} (allowed {tolerance.max_edge:g})"
    )


def _shift(parity: Parity) -> Iterator[str]:
    """Yield how all texts moved, and whether their order is left; nothing of older results."""
    least = parity.tolerance.min_correlation
    if parity.common_shift is None or least is None:
        return
    yield (
        f"all texts together moved by {_figure(parity.common_shift)} of the logits' size, "
        f"{_figure(parity.logit_size)}; correlation over texts {_figure(parity.correlation)}, "
        f"{_figure(parity.correlation_high)} at best (allowed {least:g})"
    )


def _score(parity: Parity) -> Iterator[str]:
    """Yield the score's change; nothing where the texts had no labels, as in old results."""
    least = parity.tolerance.min_score_change
    if parity.score_change is not None:
        allowed = "" if least is None else f" (allowed {least:g})"
        yield (
            f"score {parity.score_change:+.2f} points in the worst arrangement, "
            f"{_figure(parity.score_change_high)} at best{allowed}"
        )


def _compared(parity: Parity) -> Iterator[str]:
    """Yield what was compared besides logits; nothing in older results."""
    if parity.inputs_compared is not None:
        yield "tokens compared" if parity.inputs_compared else "tokens not comparable"
    if parity.graphs_compared is not None:
        state = "compared" if parity.graphs_compared else "not compared: the float one is missing"
        yield f"products of both graphs {state}"


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
