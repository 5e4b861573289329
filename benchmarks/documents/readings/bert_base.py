"""The reading of the chain from a BERT-base teacher: what small models keep of it, and the aims."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.words import listed, paragraph, ratio
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import speedup_over_processes

__all__ = ["bert_base_reading"]

SCORE, SMALLER, FASTER = 0.985, 40, 40
"""The aims: share of the teacher's score; how many times fewer bytes, and as fast in PyTorch."""

SMALL = ("int8", "int4", "int3", "int2")
"""Precisions of the models to deploy."""


def bert_base_reading(files: Mapping[str, Path]) -> str:
    """Return a line for each quantized model: its score, bytes and time against the teacher's.

    The comparison must have the rows teacher and teacher-onnx.
    """
    (path,) = files.values()
    comparison = Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    rows = {row.name: row for row in comparison.rows}
    small = [row for row in comparison.rows if row.precision in SMALL]
    aims = paragraph(
        f"The aims are {SCORE:.1%} of the teacher's score, {SMALLER} times fewer bytes, and "
        f"{FASTER} times its speed in PyTorch for one text:"
    )
    lines = [f"- {_line(row, rows['teacher'], rows['teacher-onnx'])}" for row in small]
    return "\n".join([aims, *lines, ""])


def _line(row: ComparisonRow, teacher: ComparisonRow, in_onnx: ComparisonRow) -> str:
    share = row.score.value / teacher.score.value
    smaller = teacher.size.model_size_bytes / row.size.model_size_bytes
    faster, within = (
        speedup_over_processes(each.latency.single_ms, row.latency.single_ms)
        for each in (teacher, in_onnx)
    )
    figures = {
        "score": share >= SCORE,
        "bytes": smaller >= SMALLER,
        "speed": faster.value >= FASTER,
    }
    missed = [name for name, held in figures.items() if not held]
    return (
        f"`{row.name}`: {share:.1%} of the score, {smaller:.0f} times fewer bytes, {ratio(faster)} "
        f"the speed of `teacher`, {ratio(within)} that of `teacher-onnx`; missed: {listed(missed)}"
    )
