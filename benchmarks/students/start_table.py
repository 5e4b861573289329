"""The table of the layers that students start from, as Markdown: a row for each comparison."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.students.measuring import ScoredModel, StudentsBenchmark, groups_of
from bertender.report.cells import markdown_rows

__all__ = ["start_layers_block"]

PAIRS = (
    ("first", "pkd-6-labels", "hard-6"),
    ("first", "-first", "-even"),
    ("first", "-first", "-alternating"),
    ("first-and-last", "-ends", "-alternating"),
)
"""A row of START_LAYERS, and the ends of the names of groups: of students that start from it, and
of those that start from their method's own layers."""
HEADINGS = (
    *("Set", "Teacher", "Layers", "Method", "Training", "Seeds"),
    *("Start", "To choose by", "Method's own", "Held out", "Method's own", "Held out, points"),
)


def start_layers_block(files: Mapping[str, Path]) -> str:
    """Return what choices of layers gain over the method's own, in each file, and the files."""
    rows = [row for path in files.values() for row in _rows(path)]
    heads, *cells = ([(cell,) for cell in row] for row in (HEADINGS, *rows))
    lines = markdown_rows(heads, cells, [place == 5 or place > 6 for place in range(len(HEADINGS))])
    raw = ", ".join(f"`{name}`" for name in files)
    return "\n".join([*lines, "", f"Raw: {raw}\n"])


def _rows(path: Path) -> Iterator[list[str]]:
    raw = json.loads(path.read_text(encoding="utf-8"))
    result = StudentsBenchmark.model_validate(raw.get("scores", raw))
    for start, chosen, own in _pairs(groups_of(result.students)):
        settings = own[0].settings
        length = f"{raw['budget_s']:.0f} s" if "budget_s" in raw else f"{settings['epochs']} epochs"
        means = *_means(chosen, own, "choice"), *_means(chosen, own, "score")
        yield [
            f"{result.task}, {result.metric}",
            result.teacher.name,
            str(settings["layers"]),
            f"`{settings['method']}`",
            length,
            str(len(chosen)),
            f"`{start}`",
            *(f"{value:.3f}" for value in means),
            points(result.gained(own, chosen)),
        ]


def _means(
    chosen: Sequence[ScoredModel], own: Sequence[ScoredModel], texts: str
) -> tuple[float, float]:
    ours, theirs = (
        statistics.mean([getattr(each, texts).value for each in group]) for group in (chosen, own)
    )
    return ours, theirs


def _pairs(
    groups: Mapping[str, list[ScoredModel]],
) -> list[tuple[str, list[ScoredModel], list[ScoredModel]]]:
    """Return each choice of layers, and the groups that start from it and from the method's."""
    pairs = [
        (start, group, groups[beginning + other])
        for start, first, other in PAIRS
        for name, group in groups.items()
        if name.endswith(first) and (beginning := name.removesuffix(first)) + other in groups
    ]
    if not pairs:
        raise ValueError(f"no two groups of {', '.join(groups)} start from different layers")
    return pairs
