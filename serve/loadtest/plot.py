"""Picture of a load test, as SVG: latency over the rate, or over the percentile of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from serve.loadtest.records import Limit, LoadRun, LoadTest

__all__ = ["Chart", "Line", "load_svg"]

WIDTH, HEIGHT, MARGIN = 560, 320, 48
BLUE, ORANGE, GREY, BLACK = "#0072b2", "#d55e00", "#666666", "#000000"
"""Distinct also for those who see no red or green (Okabe and Ito)."""
NINES = (0.0, 50.0, 90.0, 99.0, 99.9)
POINTS = 60


@dataclass(frozen=True)
class Line:
    """A line of the picture."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines, and the marks of the horizontal axis: place -> words."""

    title: str
    lines: Sequence[Line]
    marks: dict[float, str]


def load_svg(test: LoadTest) -> str:
    """Draw a load test: of several rates, p50 and p99 by rate; of one, latency by percentile."""
    several = [run for run in test.runs if run.rate is not None]
    by_rate = len(several) > 1 or test.limit
    return _svg(_by_rate(test, several) if by_rate else _by_percentile(test.runs[0]))


def _by_rate(test: LoadTest, runs: Sequence[LoadRun]) -> Chart:
    ordered = sorted(runs, key=lambda run: run.rate or 0.0)
    rates = [run.rate or 0.0 for run in ordered]
    p50 = [(run.rate or 0.0, run.latency.p50_ms) for run in ordered if run.latency]
    p99 = [(run.rate or 0.0, run.p99_ms) for run in ordered if run.p99_ms is not None]
    lines = [Line("p50", BLUE, p50), Line("p99", ORANGE, p99)]
    if test.limit:
        lines.extend(_limit_lines(test.limit, rates[-1]))
    texts = ordered[0].texts_per_request
    marks = {part * rates[-1]: f"{part * rates[-1]:.3g}" for part in (0.0, 0.25, 0.5, 0.75, 1.0)}
    return Chart(f"latency (ms) by requests a second, {texts} texts each", lines, marks)


def _limit_lines(limit: Limit, furthest: float) -> Iterator[Line]:
    """Yield the p99 that must hold, and the rate that holds it where that is a lower bound."""
    p99_ms = limit.slo_p99_ms
    ends = [(0.0, p99_ms), (furthest, p99_ms)]
    yield Line(f"limit of the p99: {p99_ms:g} ms", GREY, ends, dashed=True)
    if limit.lower_bound:
        words = f"at least {limit.rate:.4g} requests/s: a lower bound"
        yield Line(words, BLACK, [(limit.rate, 0.0), (limit.rate, p99_ms)], dashed=True)


def _by_percentile(run: LoadRun) -> Chart:
    """Draw one run; each further nine of the percentile has the same room."""
    succeeded = [ms for ms, came in zip(run.latency_ms, run.outcome, strict=True) if came == "ok"]
    depths = np.linspace(0.0, _nines(NINES[-1]), POINTS)
    percentiles = 100 * (1 - 10**-depths)
    latency_ms = np.percentile(succeeded, percentiles) if succeeded else np.zeros(POINTS)
    points = list(zip(depths.tolist(), latency_ms.tolist(), strict=True))
    title = f"latency (ms) by percentile, {run.load} of {run.texts_per_request} texts"
    return Chart(title, [Line("latency", BLUE, points)], {_nines(p): f"p{p:g}" for p in NINES})


def _nines(percentile: float) -> float:
    return -math.log10(1 - percentile / 100)


def _svg(chart: Chart) -> str:
    widest = max(chart.marks) or 1.0
    values = [y for line in chart.lines for _, y in line.points]
    highest = max(values, default=0.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = MARGIN + x / widest * (WIDTH - 2 * MARGIN)
        return across, HEIGHT - MARGIN - y / highest * (HEIGHT - 2 * MARGIN)

    drawn = [_polyline(line, place) for line in chart.lines if line.points]
    names = [
        f'<text x="{MARGIN + 10}" y="{MARGIN + 14 + 16 * row}" fill="{line.colour}">'
        f"{escape(line.name)}</text>"
        for row, line in enumerate(chart.lines)
    ]
    axes = _axes(chart, highest, place)
    return "\n".join([_head(chart.title), *axes, *drawn, *names, "</svg>", ""])


def _polyline(line: Line, place: Callable[[float, float], tuple[float, float]]) -> str:
    path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points)
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    return (
        f'<polyline fill="none" stroke="{line.colour}" stroke-width="2"{dashes} points="{path}"/>'
    )


def _head(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{MARGIN}" y="20" font-size="13">{escape(title)}</text>'
    )


def _axes(
    chart: Chart, highest: float, place: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN
    across = [
        f'<text x="{place(at, 0)[0]:.1f}" y="{bottom + 16}" text-anchor="middle">{words}</text>'
        for at, words in chart.marks.items()
    ]
    upward = [
        f'<text x="{MARGIN - 6}" y="{place(0, part * highest)[1] + 4:.1f}" '
        f'text-anchor="end">{part * highest:.3g}</text>'
        for part in (0.0, 0.5, 1.0)
    ]
    frame = f'<path d="M{MARGIN} {MARGIN} V{bottom} H{right}" fill="none" stroke="#333333"/>'
    return [frame, *across, *upward]
