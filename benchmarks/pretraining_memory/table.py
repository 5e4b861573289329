"""The table of what memory pre-training takes, from its raw result."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pretraining_memory.measuring import MemoryBenchmark, MemoryRun

__all__ = ["memory_block"]

MEGABYTE = 10**6


def memory_block(file: str, path: Path) -> str:
    """Return the peak of each tokenizer's process at the end of each stage, and the file."""
    benchmark = MemoryBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    stages = [use.stage for use in benchmark.runs[0].stages]
    titles = ["Tokenizer", *(f"{stage}, MB" for stage in stages), "Rows", "Rows on disk, MB"]
    lines = [
        _row(titles),
        _row(["---", *["---:"] * (len(titles) - 1)]),
        *(_row(_cells(run)) for run in benchmark.runs),
        "",
        f"Peak resident memory of the process by the end of each stage, as the system counts it, "
        f"on {benchmark.text_bytes / MEGABYTE:.0f} MB of text ({benchmark.passages:,} passages in "
        f"{benchmark.documents:,} documents); rows of {benchmark.config.max_length} tokens, "
        f"{benchmark.config.vocabulary_size:,} entries.",
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(run: MemoryRun) -> list[str]:
    peaks = (f"{use.peak_resident_bytes / MEGABYTE:.0f}" for use in run.stages)
    rows = run.training_rows + run.held_out_rows
    return [f"`{run.tokenizer}`", *peaks, f"{rows:,}", f"{run.bytes_of_rows / MEGABYTE:.0f}"]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
