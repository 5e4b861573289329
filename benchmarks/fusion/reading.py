"""The reading of the table of fused graphs, by the intervals of the speedups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.shapes import SHAPES
from benchmarks.common.words import above, below, holding, listed
from benchmarks.fusion.measuring import GRAPHS, FusionBenchmark
from benchmarks.fusion.table import speedup_over_plain
from bertender.measure.samples import Speedup

__all__ = ["fusion_reading"]

SIDES = (
    ("faster with", above),
    ("slower with", below),
    ("not distinguished from the plain graph with", holding),
)


def fusion_reading(files: Mapping[str, Path]) -> str:
    """Return of each optimised graph where it is faster, where slower, and by how much."""
    (path,) = files.values()
    result = FusionBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    optimised = [name for name, graph in GRAPHS.items() if graph.against != name]
    lines = [_line(name, result) for name in optimised]
    return "\n".join(["By the intervals:", "", *lines, ""])


def _line(name: str, result: FusionBenchmark) -> str:
    ratios = {shape.title: speedup_over_plain(shape, name, result) for shape in SHAPES}
    sentence = (
        f"{words} {_shown(titles, ratios)}"
        for words, chosen in SIDES
        if (titles := chosen(ratios, 1.0))
    )
    return f"- `{name}`: {'; '.join(sentence)}."


def _shown(titles: list[str], ratios: Mapping[str, Speedup]) -> str:
    return listed(f"{title} ({ratios[title].value:.2f}x)" for title in titles)
