"""COMPARE: the table of variants as a step of a recipe.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from pathlib import Path

from bertender.measure.comparison import CompareConfig, Comparison
from bertender.measure.runtimes import check_installed
from bertender.pipeline.stage import Inputs, Stage
from bertender.tasks.task import Task

__all__ = ["COMPARE"]

MOST_ROWS = 100
"""More than a reader can use."""


def _compare(inputs: Inputs, config: CompareConfig, out: Path) -> Comparison:
    from bertender.measure.compare import compare

    return compare(inputs.sources, inputs.task, config)


def _check(config: CompareConfig, task: Task) -> None:
    check_installed(*config.runtime)


COMPARE = Stage(
    name="compare",
    config=CompareConfig,
    function=_compare,
    sources=range(1, MOST_ROWS + 1),
    check=_check,
    shown_by="bertender.cli.measure_commands:show_comparison",
)
