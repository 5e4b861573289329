"""The curves of pruning benchmarks, as SVG and as a table in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.pruning.measuring import CONTROL, IMPORTANCES_SHOWN, PruningBenchmark, PruningPoint
from bertender.report.cells import DASH, markdown_rows
from bertender.tasks.task import ChosenOn

__all__ = ["pruning_block", "pruning_svg"]

WIDTH, HEIGHT, MARGIN = 560, 320, 44
CHOICES: Mapping[ChosenOn | None, str] = {
    None: "",
    "dev": " The held-out texts chose and scored.",
    "selection": " Scores are of the held-out texts, read once; how a cut would be chosen is in "
    "the file, by texts of the training file that nothing learned from.",
}
COLOURS = dict(zip(IMPORTANCES_SHOWN, ("#0072b2", "#d55e00", "#666666"), strict=True))
"""Distinct also for those who see no red or green (Okabe and Ito)."""


def pruning_block(files: Mapping[str, Path]) -> str:
    """Return a picture and a table for each file."""
    parts = []
    for file, path in files.items():
        result = PruningBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
        picture = f"pruning-{result.task}.svg"
        parts += [f"![{result.task}: {result.metric} by share of heads cut]({picture})", ""]
        parts += [_table(result), "", f"Raw: `{file}`", ""]
    return "\n".join(parts)


def _table(result: PruningBenchmark) -> str:
    shares = sorted({point.share for point in result.points})
    rows = [
        [
            (f"`{name}`{', recovered' if recovered else ''}",),
            *_cells(result, name, recovered, shares),
        ]
        for recovered in (False, True)
        for name in IMPORTANCES_SHOWN
        if curve(result.points, name, recovered)
    ]
    headings = [("Heads cut by",), *((f"{share:.0%}",) for share in shares)]
    title = (
        f"**{result.task}: {result.metric}, n = {result.n}; unpruned {result.unpruned:.3f}, "
        f"{sum(result.heads)} heads in {len(result.heads)} layers.** Recovery: "
        f"{result.config['epochs']} epoch of {result.recovery_texts} texts. `{CONTROL}` without "
        f"recovery is the mean of its seeds.{CHOICES[result.chosen_on]}"
    )
    numeric = [False, *[True] * len(shares)]
    return "\n".join([title, "", *markdown_rows(headings, rows, numeric)])


def _cells(
    result: PruningBenchmark, name: str, recovered: bool, shares: Sequence[float]
) -> list[tuple[str]]:
    scores = curve(result.points, name, recovered)
    return [(f"{scores[share]:.3f}" if share in scores else DASH,) for share in shares]


def curve(points: Sequence[PruningPoint], name: str, recovered: bool) -> dict[float, float]:
    """Return the mean score by share of heads, of one importance."""
    mine = [each for each in points if (each.importance, each.recovered) == (name, recovered)]
    return {
        share: statistics.mean(each.score for each in mine if each.share == share)
        for share in sorted({each.share for each in mine})
    }


def pruning_svg(result: PruningBenchmark) -> str:
    """Draw the curves: lines without recovery, dashed lines with it."""
    scores = [result.unpruned, *(point.score for point in result.points)]
    low, high = min(scores), max(scores)
    span = (high - low) or 1.0

    def place(share: float, score: float) -> str:
        x = MARGIN + share * (WIDTH - 2 * MARGIN)
        y = HEIGHT - MARGIN - (score - low) / span * (HEIGHT - 2 * MARGIN)
        return f"{x:.1f},{y:.1f}"

    lines = []
    for recovered in (False, True):
        for name in IMPORTANCES_SHOWN:
            at_share = {0.0: result.unpruned, **curve(result.points, name, recovered)}
            if len(at_share) > 1:
                path = " ".join(place(share, score) for share, score in at_share.items())
                dashes = ' stroke-dasharray="5 4"' if recovered else ""
                lines.append(
                    f'<polyline fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dashes} '
                    f'points="{path}"/>'
                )
    return "\n".join([_head(result), *_axes(low, high), *lines, *_legend(), "</svg>", ""])


def _head(result: PruningBenchmark) -> str:
    title = escape(f"{result.task}: {result.metric} by share of attention heads cut")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{MARGIN}" y="20" font-size="13">{title}</text>'
    )


def _axes(low: float, high: float) -> list[str]:
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN
    ticks = [
        f'<text x="{MARGIN + share * (right - MARGIN):.1f}" y="{bottom + 16}" '
        f'text-anchor="middle">{share:.0%}</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    scores = [
        f'<text x="{MARGIN - 6}" y="{bottom - part * (bottom - MARGIN) + 4:.1f}" '
        f'text-anchor="end">{low + part * (high - low):.2f}</text>'
        for part in (0.0, 0.5, 1.0)
    ]
    frame = f'<path d="M{MARGIN} {MARGIN} V{bottom} H{right}" fill="none" stroke="#333333"/>'
    return [frame, *ticks, *scores]


def _legend() -> list[str]:
    """Name the colours, in the lower left corner, where no good curve goes."""
    top = HEIGHT - MARGIN - 16 * (len(COLOURS) + 1)
    names = [
        f'<text x="{MARGIN + 10}" y="{top + 16 * row}" fill="{colour}">{name}</text>'
        for row, (name, colour) in enumerate(COLOURS.items())
    ]
    dashed = f'<text x="{MARGIN + 10}" y="{top + 16 * len(COLOURS)}">dashed: recovered</text>'
    return [*names, dashed]
