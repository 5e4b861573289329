"""The table of what memory and disk each step takes, from its raw result."""

from __future__ import annotations

from pathlib import Path

from benchmarks.step_memory.measuring import StepMemoryBenchmark, StepUse
from bertender.core.processors import processor_name
from bertender.report.cells import Cell, markdown_rows

__all__ = ["step_memory_block"]

MEGABYTE = 10**6
HEADINGS: tuple[Cell, ...] = (
    ("Command",),
    ("Memory, MB",),
    ("Most disk meanwhile, MB",),
    ("Left on disk, MB",),
)


def step_memory_block(file: str, path: Path) -> str:
    """Return each command's memory and disk, and how they were measured."""
    result = StepMemoryBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    here = result.environment
    return "\n".join(
        [
            *markdown_rows(HEADINGS, [_cells(step) for step in result.steps], [False, *[True] * 3]),
            "",
            f"`{result.encoder}` on the task `{result.task}`, {result.rows:,} training texts at "
            "most. Memory is the peak resident memory of the command's largest process, as the "
            "kernel counts it. Disk is what the output folders and the cache folder grew by, "
            "sampled, so that short peaks can be missed; temporary files elsewhere are not "
            "counted. "
            f"{processor_name(here)}, OMP_NUM_THREADS={result.threads or 'not set'}; "
            + ", ".join(f"{name} {here.versions[name]}" for name in ("torch", "onnxruntime"))
            + ".",
            "",
            f"Raw: `{file}`",
            "",
        ]
    )


def _cells(step: StepUse) -> list[Cell]:
    figures = (
        step.largest_process_bytes,
        step.most_disk_bytes,
        step.left_on_disk_bytes,
    )
    return [(f"`{step.command}`",), *((f"{figure / MEGABYTE:,.0f}",) for figure in figures)]
