"""The table of what a served model takes next to the same model in process, from its raw result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.endpoint import IN_PROCESS, TEXTS_A_REQUEST, WAYS, EndpointBenchmark, ServedModel
from bertender.measure.latency import Latency
from bertender.measure.load import busiest

__all__ = ["Ratio", "endpoint_block", "ratio_over_starts"]

RESAMPLES = 1000

Samples = Sequence[Sequence[float]]
"""rounds x requests, in milliseconds"""


@dataclass(frozen=True)
class Ratio:
    """Ratio of times, with a 95 % interval over starts and rounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class _Request:
    """A column of the table: its title, how many texts, and a row's samples."""

    title: str
    samples: Callable[[Latency], Samples]


REQUESTS = (
    _Request("One text a request", lambda row: row.single_ms),
    _Request(
        f"{TEXTS_A_REQUEST} texts a request", lambda row: [(value,) for value in row.batch_ms]
    ),
)


def ratio_over_starts(
    references: Sequence[Samples], candidates: Sequence[Samples], seed: int = 0
) -> Ratio:
    """Return the median of a round's ratio of medians, and its interval.

    Starts are resampled first, then the rounds of each: the interval holds both what differs from
    one process to the next and what differs within one.

    Args:
        references: starts x rounds x requests of the row to divide by.
        candidates: the same starts and rounds of the row in question.
        seed: what is resampled.
    """
    ratios = [
        np.median(candidate, axis=1) / np.median(reference, axis=1)
        for reference, candidate in zip(references, candidates, strict=True)
    ]
    generator = np.random.default_rng(seed)
    medians = [float(np.median(_resampled(ratios, generator))) for _ in range(RESAMPLES)]
    low, high = np.percentile(medians, [2.5, 97.5])
    return Ratio(float(np.median(np.concatenate(ratios))), float(low), float(high))


def _resampled(
    ratios: Sequence[npt.NDArray[np.float64]], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    starts = [ratios[start] for start in generator.integers(0, len(ratios), len(ratios))]
    return np.concatenate([generator.choice(start, len(start)) for start in starts])


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
        local, asked = (
            [request.samples(report.rows[row]) for report in model.starts] for row in (0, way)
        )
        median = np.median([value for start in asked for taken in start for value in taken])
        cells += [f"{median:.2f}", _shown(ratio_over_starts(local, asked)) if way else "-"]
    return cells


def _shown(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


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
        f"{here.cpu_model}, threads: {reports[0].threads}; {versions}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
