"""The table of what optimising a graph before it is written gains, from its raw result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.kernel_times import RUNS
from benchmarks.common.long_texts import LONG_TOKENS
from benchmarks.common.shapes import SHAPES, Shape, Times
from benchmarks.fusion.measuring import GRAPHS, FusionBenchmark
from bertender.core.processors import processor_name
from bertender.measure.load import BUSY_SHARE, busiest
from bertender.measure.samples import Speedup

__all__ = ["fusion_block", "fusion_profile_block", "speedup_over_plain"]

SHOWN_SHARE = 0.02
"""Of the plain graph's time, that an operator's must differ by to be shown, at least."""
ALIKE = ("float32", "float32 basic")
"""Graphs that ONNX Runtime runs alike: what their profiles differ by is by chance."""


def fusion_block(file: str, path: Path) -> str:
    """Return each graph's times and its speedup over the one that was not optimised."""
    result = FusionBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = [
        "Graph",
        "ONNX Runtime's own operators when written",
        "SkipLayerNormalization that runs",
        "Score",
        *(f"{shape.title}: ms, speedup" for shape in SHAPES),
    ]
    lines = [
        _row(titles),
        _row(["---", "---", "---:", "---:", *["---:"] * len(SHAPES)]),
        *(_row(_cells(name, result)) for name in GRAPHS),
        "",
        _conditions(result),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def fusion_profile_block(file: str, path: Path) -> str:
    """Return in which operators each graph takes another time than the plain one."""
    result = FusionBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = ["Graph", "All operators, ms", "Against the plain graph, ms", "Of that, by operator"]
    load = busiest([each.load for each in result.profiles.values() if each.load])
    lines = [
        _row(titles),
        _row(["---", "---:", "---:", "---"]),
        *(_row(_profile_cells(name, result)) for name in GRAPHS),
        "",
        f"ONNX Runtime's profile of one text of {LONG_TOKENS} tokens, the mean of {RUNS} runs; "
        f"operators that differ by {_shown_share(result):.0%} of the plain graph's time or more. "
        f"That much, `{ALIKE[0]}` and `{ALIKE[1]}` differ by chance: graphs are profiled one after "
        "another, and which is faster is in the table before. Busiest: "
        f"{load}. {processor_name(result.environment)}, threads: {result.natural.threads}.",
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _profile_cells(name: str, result: FusionBenchmark) -> list[str]:
    plain, own = (result.profiles[each].operators_ms for each in (GRAPHS[name].against, name))
    total, whole = sum(own.values()), sum(plain.values())
    if name == GRAPHS[name].against:
        return [name, f"{total:.2f}", "-", "-"]
    differences = {each: own.get(each, 0.0) - plain.get(each, 0.0) for each in plain | own}
    largest = sorted(differences.items(), key=lambda pair: -abs(pair[1]))
    least = _shown_share(result) * whole
    shown = [f"{each} {ms:+.2f}" for each, ms in largest if abs(ms) >= least]
    return [name, f"{total:.2f}", f"{total - whole:+.2f}", ", ".join(shown) or "-"]


def _shown_share(result: FusionBenchmark) -> float:
    """Return the share of the plain graph's time that a difference must have to be shown."""
    plain, alike = (result.profiles[each].operators_ms for each in ALIKE)
    differences = (abs(alike.get(each, 0.0) - plain.get(each, 0.0)) for each in plain | alike)
    return max(SHOWN_SHARE, max(differences) / sum(plain.values()))


def _cells(name: str, result: FusionBenchmark) -> list[str]:
    fused = ", ".join(f"{count} {operator}" for operator, count in result.fused[name].items())
    running = str(result.skip_layer_norms[name])
    score = f"{result.scores[name].value:.3f}"
    return [name, fused or "-", running, score, *(_cell(shape, name, result) for shape in SHAPES)]


def _cell(shape: Shape, name: str, result: FusionBenchmark) -> str:
    """Return the median, and how many times as fast as the plain graph of the same precision."""
    plain, own = (_times(each, result) for each in (GRAPHS[name].against, name))
    if name == GRAPHS[name].against:
        return f"{shape.median(own)}, -"
    return shape.median_and_speedup(plain, own)


def speedup_over_plain(shape: Shape, name: str, result: FusionBenchmark) -> Speedup:
    """Return how many times as fast a graph is as the plain one of the same precision."""
    plain, own = (_times(each, result) for each in (GRAPHS[name].against, name))
    return shape.speedup(plain, own)


def _times(name: str, result: FusionBenchmark) -> Times:
    natural, long = (
        {row.name: row for row in report.rows} for report in (result.natural, result.long)
    )
    return Times(natural[name], long[name])


def _conditions(result: FusionBenchmark) -> str:
    here, config = result.environment, result.natural.config
    loads = [each.load for each in (result.natural, result.long) if each.load]
    busy, rounds = busiest(loads).busy if loads else None, f"{config.rounds} rounds"
    shared = "" if busy is None or busy <= BUSY_SHARE else " on a machine shared with other work"
    others = "load not recorded" if busy is None else f"others had {busy:.0%} of the cores"
    if config.processes > 1:
        rounds = f"{config.processes} fresh processes of {rounds}"
    versions = ", ".join(f"{name} {here.versions[name]}" for name in ("onnxruntime", "torch"))
    return (
        f"{result.task}, a teacher of {result.teacher_layers} layers; {rounds}, rows "
        f"interleaved{shared} ({others}), tokenisation "
        f"included; medians, and speedups over the plain graph of the same precision by rounds, "
        f"with intervals of 95 %. {processor_name(here)}, threads: {result.natural.threads}; "
        f"{versions}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
