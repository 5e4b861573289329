"""The compared row that is the same model in ONNX Runtime float32, found by digests.

A change of runtime, from PyTorch to ONNX Runtime, is worth about as much as a change of the model.
A speedup over the same model in ONNX Runtime float32 leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bertender.measure.comparison import ComparisonRow
from bertender.measure.samples import speedup_over_processes
from bertender.models.runtimes import DEFAULT_RUNTIME

__all__ = ["onnx_float32_of", "with_speedups_over_onnx_float32"]


def with_speedups_over_onnx_float32(
    rows: Sequence[ComparisonRow], seed: int
) -> tuple[ComparisonRow, ...]:
    """Return the rows, each with its speedup over its own float32 graph where that is a row."""
    return tuple(_with_speedup(row, onnx_float32_of(row, rows), seed) for row in rows)


def onnx_float32_of(row: ComparisonRow, rows: Sequence[ComparisonRow]) -> ComparisonRow | None:
    """Return the first float32 graph among the rows that is the same model as `row`, or None.

    That is the row itself, the graph that it was quantized from, the graph that it was exported
    to, or another export of the model that it was written from (8 bits straight from PyTorch,
    float16). A student is not the same model as the teacher that it has as its parent.
    """
    graphs = [
        each
        for each in rows
        if (each.kind, each.precision) == ("onnx", "float32")
        and each.runtime in (None, DEFAULT_RUNTIME)
    ]
    related: tuple[Callable[[ComparisonRow], bool], ...] = (
        lambda graph: graph.digest == row.digest,
        lambda graph: graph.digest == row.parent,
        lambda graph: graph.parent == row.digest,
        lambda graph: (
            row.kind == "onnx" and graph.parent is not None and graph.parent == row.parent
        ),
    )
    return next((graph for is_same in related for graph in graphs if is_same(graph)), None)


def _with_speedup(row: ComparisonRow, graph: ComparisonRow | None, seed: int) -> ComparisonRow:
    if graph is None:
        return row
    ratio = speedup_over_processes(graph.latency.single_ms, row.latency.single_ms, seed)
    return row.model_copy(update={"speedup_over_onnx_float32": ratio})
