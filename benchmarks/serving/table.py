"""The tables of an endpoint next to other servers of the same model, from their raw result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.versions import versions_of
from benchmarks.serving.figures import ServingFigures
from benchmarks.serving.reading import serving_reading
from benchmarks.serving.records import (
    LOADS,
    Ceiling,
    ServingBenchmark,
    ServingLimit,
    ServingVisit,
)
from benchmarks.serving.rounds import LIMITED
from benchmarks.serving.systems import OWN, OWN_ON_GPU, SYSTEMS
from benchmarks.serving.texts import LONGEST_TOKENS, WORKLOADS
from bertender.core.errors import ConfigError
from bertender.core.processors import processor_name
from bertender.core.speedup import Speedup
from bertender.measure.load import busiest
from bertender.report.cells import DASH

__all__ = ["ALONE", "BATCHED", "CLIENTS", "read_serving", "serving_block"]

BATCHED = ("1 text a request", "16 texts a request")
ALONE = "one caller"
CLIENTS = ("tritonclient", "nvidia-pytriton")
"""Packages of the generator and of the bundled server."""


def serving_block(file: str, path: Path) -> str:
    """Return a table for each workload, the aims, and the conditions, as Markdown.

    Raises:
        ConfigError: the file has a part of its rounds or limits.
    """
    result = read_serving(file, path)
    lines = [line for name in result.workloads for line in _table(result, name)]
    return "\n".join(
        [*lines, *serving_reading(result), "", _conditions(result), "", f"Raw: `{file}`", ""]
    )


def read_serving(file: str, path: Path) -> ServingBenchmark:
    """Return the result in a file.

    Raises:
        ConfigError: it has a part of its rounds or limits.
    """
    result = ServingBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    limits = len(LIMITED) if result.config.limits else 0
    parts = len(result.ceilings) + len(result.limits)
    if parts < (result.config.rounds + limits) * len(result.workloads):
        raise ConfigError(f"{file} is not finished. Run the command that wrote it again.")
    return result


def _table(result: ServingBenchmark, workload: str) -> list[str]:
    lengths, figures = result.workloads[workload], ServingFigures(result, workload)
    titles = ["Server"]
    for load in BATCHED:
        titles += [f"{load}, texts/s", "of the ceiling"]
    limit = figures.limit(OWN)
    slo = f"{limit.slo_p99_ms if limit else result.config.slo_p99_ms:g}"
    titles += ["one caller, p50 ms", "added, ms", f"p99 of {slo} ms, texts/s"]
    return [
        f"{WORKLOADS[workload].title}: {lengths.texts} texts, the median has {lengths.median:g} "
        f"tokens, the 95th percentile {lengths.p95:g}, the longest {lengths.longest}.",
        "",
        _row(titles),
        _row(["---", *["---:"] * (len(titles) - 1)]),
        _row(_ceiling_cells(figures)),
        *(_row(_cells(figures, name)) for name in SYSTEMS if _is_shown(figures, name)),
        "",
    ]


def _is_shown(figures: ServingFigures, system: str) -> bool:
    """Return whether a system was measured, or would have been where it is installed."""
    return bool(figures.visits(system)) or system in figures.result.left_out


def _ceiling_cells(figures: ServingFigures) -> list[str]:
    single = sum(each.single_p50_ms for each in figures.ceilings()) / len(figures.ceilings())
    speed = f"{figures.ceiling().value:.4g}"
    return ["the model in process (ceiling)", speed, DASH, speed, DASH, f"{single:.2f}", DASH, DASH]


def _cells(figures: ServingFigures, system: str) -> list[str]:
    title = SYSTEMS[system].title
    if not figures.visits(system):
        return [f"{title} (not installed)", *[DASH] * 7]
    cells = [title]
    for load in BATCHED:
        cells.append(f"{figures.texts_per_second(system, load).value:.4g}")
        cells.append(_interval(figures.share_of_ceiling(system, load)))
    cells.append(f"{figures.p50_ms(system, ALONE).value:.2f}")
    cells.append(_interval(figures.added_ms(system, ALONE)))
    return [*cells, _limit(figures.limit(system))]


def _limit(limit: ServingLimit | None) -> str:
    if limit is None or limit.limit is None:
        return DASH if limit is None else "none"
    bound = "at least " if limit.limit.lower_bound else ""
    return f"{bound}{limit.limit.rate:.4g}"


def _interval(figure: Speedup) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _conditions(result: ServingBenchmark) -> str:
    here, config = result.environment, result.config
    parts: tuple[Ceiling | ServingVisit | ServingLimit, ...]
    parts = (*result.ceilings, *result.visits, *result.limits)
    load = busiest([each.load for each in parts])
    clients = ", ".join(f"{name}: {row.clients} clients" for name, row in LOADS.items())
    cores = "server and generator share the cores"
    if config.pins.server is not None:
        cores = "the server has one core, the generator another"
    in_openvino = any("openvino" in visit.system for visit in result.visits)
    openvino = " The ceiling is of ONNX Runtime in the row of OpenVINO, too."
    on_gpu = any(visit.system == OWN_ON_GPU for visit in result.visits)
    gpu = f" The ceiling is of the CPU in the row of the GPU ({here.gpu}), too."
    runtimes = "onnxruntime", "onnxruntime-gpu", *(["openvino"] if in_openvino else ())
    versions = versions_of(here, (*runtimes, *CLIENTS), on_gpu=on_gpu)
    return (
        f"{result.name} ({result.precision}), texts of {result.task}; {cores}. {config.rounds} "
        f"starts of each server, in turns; means, with intervals of 95 % over starts. Closed loop "
        f"({clients}), requests prepared before. The ceiling is the best of 1, 16 and 64 texts a "
        "call in process, on the server's core, tokenisation included."
        f"{openvino if in_openvino else ''}{gpu if on_gpu else ''} The last column is the "
        "highest rate of single texts in an open loop that holds the p99, of a size that the "
        "padded repository can hold; the ends of its ratio are those of the search. The maximum is "
        f"{LONGEST_TOKENS} tokens, or the model's input where that is shorter. Busiest start: "
        f"{load}. {processor_name(here)}; {versions}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
