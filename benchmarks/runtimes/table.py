"""The table of runtimes from its raw results: a part for each model, a row a file and runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.shapes import SHAPES, Shape, Times
from benchmarks.common.versions import versions_of
from benchmarks.runtimes.measuring import RuntimeBenchmark
from bertender.core.processors import processor_name
from bertender.measure.comparison import ComparisonRow
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.report.cells import markdown_rows

__all__ = ["Timed", "machine_of", "read_runtimes", "rows_of", "runtime_block"]


@dataclass(frozen=True)
class Timed:
    """A row: its score, and its times."""

    row: ComparisonRow
    times: Times


def runtime_block(files: Mapping[str, Path]) -> str:
    """Return a table for each model, and the files that they are from."""
    parts = [part for result in read_runtimes(files) for part in _part(result)]
    return "\n".join([*parts, f"Raw: {', '.join(f'`{name}`' for name in files)}", ""])


def read_runtimes(files: Mapping[str, Path]) -> list[RuntimeBenchmark]:
    """Return the results of some files."""
    texts = (path.read_text(encoding="utf-8") for path in files.values())
    return [RuntimeBenchmark.model_validate_json(text) for text in texts]


def rows_of(result: RuntimeBenchmark) -> list[Timed]:
    """Return the rows with all of their times; the float model in ONNX Runtime is the first."""
    both = zip(result.comparison.rows, result.long.rows, strict=True)
    rows = [Timed(row, Times(row.latency, long)) for row, long in both]
    assert rows[0].row.runtime == DEFAULT_RUNTIME
    return rows


def machine_of(result: RuntimeBenchmark) -> str:
    """Return the CPU, and the GPU where a runtime of the result runs on it."""
    here = result.comparison.circumstances.environment
    cpu = processor_name(here)
    return f"{cpu}, {here.gpu}" if _on_gpu(result) else cpu


def _on_gpu(result: RuntimeBenchmark) -> bool:
    return any(RUNTIMES[name].needs_gpu for name in result.comparison.circumstances.config.runtime)


def _part(result: RuntimeBenchmark) -> list[str]:
    rows, conditions = rows_of(result), result.comparison.circumstances
    headings = [
        "Artifact and runtime",
        "Precision of the file",
        "Disk MB",
        f"{conditions.metric}, points",
    ]
    headings += [f"{shape.title}: ms, speedup" for shape in SHAPES]
    cells = [tuple((cell,) for cell in _cells(timed, rows)) for timed in rows]
    numeric = (False, False, *[True] * (len(headings) - 2))
    size = (rows[0].row.size.parameters or 0) / 1e6
    title = f"**{conditions.task}, a model of {result.layers} layers, {size:.0f}M parameters**"
    table = markdown_rows([(heading,) for heading in headings], cells, numeric)
    return [title, "", *table, "", _conditions(result), ""]


def _cells(timed: Timed, rows: Sequence[Timed]) -> list[str]:
    row = timed.row
    change = "" if row.change is None else f", {points(row.change)}"
    times = (_time(shape, timed, rows) for shape in SHAPES)
    disk = f"{row.size.model_size_bytes / 1e6:.1f}"
    return [row.name, row.precision, disk, f"{row.score.value:.3f}{change}", *times]


def _time(shape: Shape, timed: Timed, rows: Sequence[Timed]) -> str:
    if timed is rows[0]:
        return shape.median(timed.times)
    return shape.median_and_speedup(rows[0].times, timed.times)


def _conditions(result: RuntimeBenchmark) -> str:
    here, load = result.comparison.circumstances, result.comparison.circumstances.load
    packages = tuple(dict.fromkeys(runtime.package for runtime in RUNTIMES.values()))
    versions = versions_of(here.environment, packages, on_gpu=_on_gpu(result))
    others = "" if load is None else f", others had {load.busy:.0%} of the cores"
    return (
        f"{machine_of(result)}, {here.threads} threads; "
        f"{versions}{others}. "
        "Points and speedups are against the float model in ONNX Runtime, with intervals of 95 %."
    )
