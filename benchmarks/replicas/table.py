"""The table of replicas, from their raw result: throughput and a rolling restart against aims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.words import verdict
from benchmarks.replicas.records import COUNTS, Cores, ReplicaBenchmark, ReplicaRun
from bertender.core.processors import processor_name
from bertender.core.speedup import Speedup
from bertender.measure.load import busiest
from serve.tuning.rounds import mean_over_rounds

__all__ = ["LEAST_SCALING", "MOST_FAILED", "replicas_block"]

LEAST_SCALING, MOST_FAILED = 1.8, 0
"""Aims."""
CELLS = ("Replicas", "Texts/s", "p50, ms", "p99, ms", "Cores of the replicas", "of the proxy")
PROCESSES = ("replicas", "proxy", "generator")


def replicas_block(file: str, path: Path) -> str:
    """Return what a second replica gives, and what restarts cost, as Markdown."""
    result = ReplicaBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = (*CELLS, "of the generator")
    lines = [
        _row(titles),
        _row(["---", *["---:"] * (len(titles) - 1)]),
        *(_row(_cells(result.of(count))) for count in COUNTS),
        "",
        f"- Two replicas have {_interval(result.scaling)} times the throughput of one (aim: at "
        f"least {LEAST_SCALING:g}): {_side(result.scaling)}.",
        f"- Rolling restart: {_restarted(result)}.",
        "",
        _conditions(result),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(runs: Sequence[ReplicaRun]) -> list[str]:
    speed = mean_over_rounds([each.texts_per_second for each in runs])
    used = [
        f"{statistics.fmean(each.cores_used[process] for each in runs):.2f}"
        for process in PROCESSES
    ]
    p50, p99 = ([getattr(each, name) for each in runs] for name in ("p50_ms", "p99_ms"))
    return [str(runs[0].replicas), f"{speed.value:.4g}", _median(p50), _median(p99), *used]


def _median(values: Sequence[float | None]) -> str:
    """Return the median over rounds; none where a round has none."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0f}" if len(known) == len(values) else "none"


def _side(scaling: Speedup) -> str:
    if scaling.low >= LEAST_SCALING:
        return "reached"
    return "missed" if scaling.high < LEAST_SCALING else "not distinguished from it"


def _restarted(result: ReplicaBenchmark) -> str:
    restart = result.restart
    counts = ", ".join(f"{count} {outcome}" for outcome, count in restart.outcomes.items())
    times = " and ".join(f"{each.stop_s + each.start_s:.1f} s" for each in restart.restarts)
    p99 = "none" if restart.p99_ms is None else f"{restart.p99_ms:.0f} ms"
    word = verdict(restart.failed <= MOST_FAILED)
    return (
        f"{restart.failed} requests without a response (aim: {MOST_FAILED}): {word}. Of all, "
        f"{counts}; p99 {p99}. A replica was away for {times}"
    )


def _conditions(result: ReplicaBenchmark) -> str:
    here, config = result.environment, result.config
    load = busiest([*(each.load for each in result.runs), result.restart.load])
    return (
        f"{result.name} ({result.precision}), {config.texts_per_request} texts of {result.task} a "
        f"request over HTTP through haproxy, {config.clients} clients that wait for their "
        f"responses. {_placed(config.cores)} {config.rounds} starts of one and of two, in turns; "
        "means, medians of latencies, and an interval of 95 % over starts. Cores are processor "
        f"time by time. Busiest start: {load}. {processor_name(here)}; onnxruntime "
        f"{here.versions['onnxruntime']}."
    )


def _placed(cores: Cores) -> str:
    places = [
        f"{process} on {'all cores' if core is None else f'core {core}'}" for process, core in cores
    ]
    return f"{', '.join(places).capitalize()}."


def _interval(figure: Speedup) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
