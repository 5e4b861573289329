"""The tables of quantization benchmarks, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.kernel_times import KernelTimes
from benchmarks.common.long_texts import LONG_TOKENS
from benchmarks.common.points import points
from benchmarks.quantization.measuring import QuantizationBenchmark
from bertender.measure.comparison import ComparisonRow
from bertender.measure.constant import ConstantRow
from bertender.measure.latency import Latency
from bertender.measure.samples import Speedup
from bertender.report.cells import DASH, Cell, markdown_rows, short
from bertender.report.table import comparison_lines

__all__ = ["quantization_block"]

MEGABYTE = 10**6
HEADINGS: tuple[Cell, ...] = (
    ("Model",),
    ("Score",),
    ("Points over float32",),
    ("MB",),
    ("p50 ms",),
    ("Speedup",),
    (f"p50 ms, {LONG_TOKENS} tokens",),
    (f"Speedup, {LONG_TOKENS} tokens",),
    ("In products, ms",),
    ("Elsewhere, ms",),
    ("Batch speedup",),
    ("Agreement",),
)


def quantization_block(files: Mapping[str, Path]) -> str:
    """Return a table for each file, and under what all were measured."""
    results = {
        file: QuantizationBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
        for file, path in files.items()
    }
    notes = [comparison_lines(each.comparison)[1:] for each in results.values()]
    shared = [note for note in notes[0] if all(note in others for others in notes)]
    tables = [
        _table(result, [note for note in own if note not in shared])
        for result, own in zip(results.values(), notes, strict=True)
    ]
    profiled = (
        f"`In products` and `Elsewhere` are of one text of {LONG_TOKENS} tokens, by ONNX Runtime's "
        "profile, which makes each operator a little slower"
    )
    raw = ", ".join(f"`{file}`" for file in results)
    return "\n".join(
        [
            *tables,
            "How all of it was measured:",
            "",
            *map(_item, (*shared, profiled)),
            "",
            f"Raw: {raw}",
            "",
        ]
    )


def _item(note: str) -> str:
    return f"- {note}"


def _table(result: QuantizationBenchmark, notes: Sequence[str]) -> str:
    """Return a result's table, why rows are missing from it, and notes of it alone."""
    under = result.comparison.circumstances
    rows = result.comparison.rows
    choices = ("Score to choose by",) if result.choices else None
    headings = [*HEADINGS, *([choices] if choices else [])]
    cells = [
        [
            *_cells(row, rows[0], long, result.kernels[row.name]),
            *([_choice(result, row)] if choices else []),
        ]
        for row, long in zip(rows, result.long.rows, strict=True)
    ]
    if constant := result.comparison.constant:
        cells.append(_constant_cells(constant, len(headings)))
    lines = markdown_rows(headings, cells, [False, *[True] * (len(headings) - 1)])
    refused = [f"`{name}` was refused: {reason}" for name, reason in result.refused.items()]
    title = f"**{under.task}: {under.metric}, n = {under.n}**"
    parts = [*map(_item, (*refused, *notes)), ""] if refused or notes else []
    return "\n".join([title, "", *lines, "", *parts])


def _choice(result: QuantizationBenchmark, row: ComparisonRow) -> Cell:
    score = result.choices[row.name]
    return (f"{score.value:.3f}", f"[{score.low:.3f}, {score.high:.3f}]")


def _constant_cells(constant: ConstantRow, columns: int) -> list[Cell]:
    """Return the row that needs no model: its score, and dashes."""
    score = constant.score
    interval = f"[{score.low:.3f}, {score.high:.3f}]"
    dashes: list[Cell] = [(DASH,)] * (columns - 2)
    return [(constant.name,), (f"{score.value:.3f}", interval), *dashes]


def _cells(
    row: ComparisonRow, first: ComparisonRow, long: Latency, kernels: KernelTimes
) -> list[Cell]:
    agreement = row.parity.agreement if row.parity else None
    return [
        (f"`{row.name}`",),
        (f"{row.score.value:.3f}", f"[{row.score.low:.3f}, {row.score.high:.3f}]"),
        (points(row.change) if row.change else DASH,),
        (short(row.size.artifact_size_bytes / MEGABYTE),),
        (short(row.latency.single.p50_ms),),
        (_speedup(row.latency.speedup),),
        (short(long.single.p50_ms),),
        (_speedup(long.speedup),),
        (short(kernels.products_ms),),
        (short(kernels.elsewhere_ms),),
        (f"{row.latency.texts_per_second / first.latency.texts_per_second:.1f}x",),
        (DASH if agreement is None else f"{agreement:.3f}",),
    ]


def _speedup(ratio: Speedup) -> str:
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"
