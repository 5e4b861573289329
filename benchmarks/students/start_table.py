"""The table of the layers that students start from, as Markdown: a row for each comparison."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common.points import gained, points
from benchmarks.students.measuring import ScoredModel, StudentsBenchmark, groups_of
from bertender.metrics.records import LabelSet
from bertender.report.cells import markdown_rows

__all__ = ["start_layers_block"]

PAIRS = (("pkd-6-labels", "hard-6"), ("-first", "-even"), ("-first", "-alternating"))
"""Ends of the names of groups that start from the first layers, and from their method's own."""
HEADINGS = (
    *("Set", "Teacher", "Layers", "Method", "Training", "Seeds"),
    *("First: to choose by", "Other", "First: held out", "Other", "Held out, points"),
)


def start_layers_block(files: Mapping[str, Path]) -> str:
    """Return what the first layers gain over the method's own, in each file, and the files."""
    rows = [row for path in files.values() for row in _rows(path)]
    heads, *cells = ([(cell,) for cell in row] for row in (HEADINGS, *rows))
    lines = markdown_rows(heads, cells, [place > 4 for place in range(len(HEADINGS))])
    raw = ", ".join(f"`{name}`" for name in files)
    return "\n".join([*lines, "", f"Raw: {raw}\n"])


def _rows(path: Path) -> Iterator[list[str]]:
    raw = json.loads(path.read_text(encoding="utf-8"))
    result = StudentsBenchmark.model_validate(raw.get("scores", raw))
    label_set = LabelSet(count=len(result.label_names), names=result.label_names)
    for first, other in _pairs(groups_of(result.students)):
        change = gained(result.metric, result.labels, other, first, label_set=label_set)
        settings = other[0].settings
        length = f"{raw['budget_s']:.0f} s" if "budget_s" in raw else f"{settings['epochs']} epochs"
        means = *_means(first, other, "choice"), *_means(first, other, "score")
        yield [
            f"{result.task}, {result.metric}",
            result.teacher.name,
            str(settings["layers"]),
            f"`{settings['method']}`",
            length,
            str(len(first)),
            *(f"{value:.3f}" for value in means),
            points(change),
        ]


def _means(
    first: Sequence[ScoredModel], other: Sequence[ScoredModel], texts: str
) -> tuple[float, float]:
    ours, theirs = (
        statistics.mean([getattr(each, texts).value for each in group]) for group in (first, other)
    )
    return ours, theirs


def _pairs(
    groups: Mapping[str, list[ScoredModel]],
) -> list[tuple[list[ScoredModel], list[ScoredModel]]]:
    """Return the groups of each comparison: from the first layers, and from others."""
    pairs = [
        (group, groups[beginning + other])
        for first, other in PAIRS
        for name, group in groups.items()
        if name.endswith(first) and (beginning := name.removesuffix(first)) + other in groups
    ]
    if not pairs:
        raise ValueError(f"no two groups of {', '.join(groups)} start from different layers")
    return pairs
