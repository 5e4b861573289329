"""COMPARE: the table of variants as a step of a recipe."""

from __future__ import annotations

from pathlib import Path

from bertender.measure.compare import CompareConfig, Comparison, compare
from bertender.pipeline.stage import Inputs, Stage

__all__ = ["COMPARE"]

MOST_ROWS = 100
"""More than a reader can use."""


def _compare(inputs: Inputs, config: CompareConfig, out: Path) -> Comparison:
    return compare(inputs.sources, inputs.task, config)


COMPARE = Stage(
    name="compare",
    config=CompareConfig,
    function=_compare,
    sources=range(1, MOST_ROWS + 1),
    shown_by="bertender.cli.measure_commands:show_comparison",
)
