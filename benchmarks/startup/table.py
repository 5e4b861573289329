"""The table of starts of the server, from its raw result: memory of each process, and time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.words import verdict
from benchmarks.serving.watched_server import SERVER, STUB, SUPERVISOR
from benchmarks.startup.measuring import COMMAND, ProcessMemory, Start, StartupBenchmark
from bertender.core.processors import processor_name

__all__ = ["MOST_BYTES", "MOST_READY_S", "startup_block"]

MOST_READY_S, MOST_BYTES = 2.5, 250e6
"""Aims."""
TITLES = {
    COMMAND: "`bertender serve`",
    SUPERVISOR: "supervisor",
    SERVER: "Triton",
    STUB: "its Python process, with the model",
}
"""Process -> what it is called in the table."""


def startup_block(file: str, path: Path) -> str:
    """Return the memory of each process, and how soon the server was ready, as Markdown."""
    result = StartupBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    resident = _megabytes(result, lambda each: each.resident_bytes)
    own = _megabytes(result, lambda each: each.own_bytes)
    rows = [(title, resident[role], own[role]) for role, title in TITLES.items()]
    rows.append(("all", sum(resident.values()), sum(own.values())))
    total = _median(result, "total_bytes") / 1e6
    ready_s, first_s = (_median(result, name) for name in ("ready_s", "first_response_s"))
    return "\n".join(
        [
            "| Process | Resident, MB | Its own, MB |",
            "| --- | ---: | ---: |",
            *(_row(*cells) for cells in rows),
            "",
            f"- Ready after {ready_s:.2f} s (aim: {MOST_READY_S:g} s): "
            f"{verdict(ready_s <= MOST_READY_S)}; a first response after {first_s:.2f} s.",
            f"- Memory in all: at least {total:.0f} MB, with pages of files counted once (aim: "
            f"{MOST_BYTES / 1e6:.0f} MB): {verdict(total * 1e6 <= MOST_BYTES)}; "
            f"{rows[-1][1]:.0f} MB where those that processes share count for each.",
            "",
            _conditions(result),
            "",
            f"Raw: `{file}`",
            "",
        ]
    )


def _megabytes(result: StartupBenchmark, size: Callable[[ProcessMemory], int]) -> dict[str, float]:
    """Return the median over the starts, by process."""
    return {
        role: statistics.median(_size(start, role, size) for start in result.starts) / 1e6
        for role in TITLES
    }


def _size(start: Start, role: str, size: Callable[[ProcessMemory], int]) -> int:
    return sum(size(each) for each in start.memory if each.role == role)


def _median(result: StartupBenchmark, name: str) -> float:
    return float(statistics.median(getattr(start, name) for start in result.starts))


def _row(title: str, resident: float, part: float) -> str:
    return f"| {title} | {resident:.1f} | {part:.1f} |"


def _conditions(result: StartupBenchmark) -> str:
    here = result.environment
    cores = "on all cores" if result.pins.server is None else "on one core"
    return (
        f"{result.name} ({result.precision}) {cores}, without a profile; medians of "
        f"{len(result.starts)} starts, memory after {result.texts} texts of {result.task}. "
        f"Meanwhile, at most, {result.load}. {processor_name(here)}; onnxruntime "
        f"{here.versions['onnxruntime']}."
    )
