"""The table of what optimising a graph before it is written gains, from its raw result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fusion import GRAPHS, FusionBenchmark
from benchmarks.long_texts import LONG_TOKENS
from bertender.measure.latency import Latency
from bertender.measure.load import BUSY_SHARE, busiest
from bertender.measure.samples import Rounds, Speedup, speedup_over_processes

__all__ = ["SHAPES", "Shape", "fusion_block", "ratio_to_plain"]

Samples = Sequence[Rounds]
"""Milliseconds, processes x rounds x texts."""


@dataclass(frozen=True)
class Shape:
    """A column of times: its title, its rows, and the milliseconds of a row."""

    title: str
    rows: Callable[[FusionBenchmark], Sequence[Latency]]
    samples: Callable[[Latency], Samples]


SHAPES = (
    Shape("one text", lambda result: result.natural.rows, lambda row: row.single_ms),
    Shape(
        f"one of {LONG_TOKENS} tokens", lambda result: result.long.rows, lambda row: row.single_ms
    ),
    Shape(
        "32 mixed",
        lambda result: result.natural.rows,
        lambda row: [[[value] for value in rounds] for rounds in row.batch_ms],
    ),
)


def fusion_block(file: str, path: Path) -> str:
    """Return each graph's times and its speedup over the one that was not optimised."""
    result = FusionBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = [
        "Graph",
        "Fused when written",
        "SkipLayerNormalization that runs",
        *(f"{shape.title}: ms, speedup" for shape in SHAPES),
    ]
    lines = [
        _row(titles),
        _row(["---", "---", "---:", *["---:"] * len(SHAPES)]),
        *(_row(_cells(name, result)) for name in GRAPHS),
        "",
        _conditions(result),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(name: str, result: FusionBenchmark) -> list[str]:
    fused = ", ".join(f"{count} {operator}" for operator, count in result.fused[name].items())
    running = str(result.skip_layer_norms[name])
    return [name, fused or "-", running, *(_times(shape, name, result) for shape in SHAPES)]


def _times(shape: Shape, name: str, result: FusionBenchmark) -> str:
    """Return the median, and how many times as fast as the plain graph of the same precision."""
    samples = _samples(shape, name, result)
    values = sorted(value for rounds in samples for texts in rounds for value in texts)
    shown = f"{values[len(values) // 2]:.2f}"
    if name == GRAPHS[name].against:
        return f"{shown}, -"
    ratio = ratio_to_plain(shape, name, result)
    return f"{shown}, {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def ratio_to_plain(shape: Shape, name: str, result: FusionBenchmark) -> Speedup:
    """Return how many times as fast a graph is as the plain one of the same precision."""
    plain, ours = (_samples(shape, each, result) for each in (GRAPHS[name].against, name))
    return speedup_over_processes(plain, ours)


def _samples(shape: Shape, name: str, result: FusionBenchmark) -> Samples:
    rows: Mapping[str, Latency] = {row.name: row for row in shape.rows(result)}
    return shape.samples(rows[name])


def _conditions(result: FusionBenchmark) -> str:
    here, config = result.environment, result.natural.config
    busy, rounds = _busy(result), f"{config.rounds} rounds"
    shared = "" if busy is None or busy <= BUSY_SHARE else " on a machine shared with other work"
    others = "load not recorded" if busy is None else f"others had {busy:.0%} of the cores"
    if config.processes > 1:
        rounds = f"{config.processes} fresh processes of {rounds}"
    versions = ", ".join(f"{name} {here.versions[name]}" for name in ("onnxruntime", "torch"))
    return (
        f"{result.task}, a teacher of {result.teacher_layers} layers; {rounds}, rows "
        f"interleaved{shared} ({others}), tokenisation "
        f"included; medians, and speedups over the plain graph of the same precision by rounds, "
        f"with intervals of 95 %. {here.cpu_model}, threads: {result.natural.threads}; {versions}."
    )


def _busy(result: FusionBenchmark) -> float | None:
    """Return the share of the cores' time that others had; None where it is not recorded."""
    loads = [each.load for each in (result.natural, result.long) if each.load]
    known = [load for load in loads if load.other_work is not None]
    return busiest(known).busy if known else result.busy_elsewhere


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
