"""The table of what a served model takes next to the same model in process, from its raw result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.endpoint.measuring import (
    IN_PROCESS,
    TEXTS_A_REQUEST,
    WAYS,
    EndpointBenchmark,
    ServedModel,
)
from bertender.core.processors import processor_name
from bertender.measure.latency import Latency
from bertender.measure.load import busiest
from bertender.measure.samples import Rounds, speedup_over_processes

__all__ = ["endpoint_block"]


@dataclass(frozen=True)
class _Request:
    """A column of the table: its title, and the rounds of a row by process."""

    title: str
    samples: Callable[[Latency], Sequence[Rounds]]


REQUESTS = (
    _Request("One text a request", lambda row: row.single_ms),
    _Request(f"{TEXTS_A_REQUEST} texts a request", lambda row: row.batch_rounds_ms),
)


def endpoint_block(file: str, path: Path) -> str:
    """Return each artifact's times by each way of asking, and how they compare, as Markdown."""
    result = EndpointBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = ["Artifact", "Asked"]
    for request in REQUESTS:
        titles += [f"{request.title}, ms", "against in process"]
    lines = [
        _row(titles),
        _row(["---", "---", *["---:"] * (len(titles) - 2)]),
        *(_row(_cells(model, way)) for model in result.models for way in range(len(WAYS))),
        "",
        _conditions(result),
        "",
        f"Raw: `{file}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(model: ServedModel, way: int) -> list[str]:
    cells = [f"{model.name} ({model.precision})", WAYS[way]]
    for request in REQUESTS:
        local, asked = (_rounds_of_starts(model, row, request) for row in (0, way))
        times = [value for start in asked for taken in start for value in taken]
        longer = str(speedup_over_processes(asked, local)) if way else "-"
        cells += [f"{np.median(times):.2f}", longer]
    return cells


def _rounds_of_starts(model: ServedModel, row: int, request: _Request) -> list[Rounds]:
    """Return the rounds of a way of asking in each start, which is timed by one process."""
    return [rounds for start in model.starts for rounds in request.samples(start.rows[row])]


def _conditions(result: EndpointBenchmark) -> str:
    here, reports = result.environment, result.models[0].starts
    load = busiest([start.load for model in result.models for start in model.starts if start.load])
    shared = " on a machine shared with other work" if load.noisy else ""
    versions = ", ".join(
        f"{name} {here.versions[name]}"
        for name in ("onnxruntime", "tritonclient", "nvidia-pytriton")
        if name in here.versions
    )
    worst = max(model.max_abs_difference for model in result.models)
    return (
        f"{result.task}; served by Triton on loopback, {len(reports)} starts of "
        f"{reports[0].config.rounds} rounds, the ways of asking interleaved with the model "
        f"{IN_PROCESS}{shared} (in the busiest start, {load}), tokenisation "
        f"included; medians, and how many times as long as {IN_PROCESS}, with intervals of 95 % "
        f"over starts and rounds. Logits within {worst:.1g} of the model {IN_PROCESS}. "
        f"{processor_name(here)}, threads: {reports[0].threads}; {versions}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
