"""The table of an endpoint on a GPU next to the same one on the CPU, from raw results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common.versions import versions_of
from benchmarks.common.words import ratio
from benchmarks.serving.figures import ServingFigures
from benchmarks.serving.records import LOADS, ServingBenchmark
from benchmarks.serving.systems import OWN, OWN_ON_GPU, SYSTEMS
from benchmarks.serving.table import ALONE, BATCHED, CLIENTS, read_serving
from benchmarks.serving.texts import WORKLOADS
from bertender.core.errors import ConfigError
from bertender.core.processors import processor_name
from bertender.measure.load import busiest
from bertender.report.cells import DASH, markdown_rows

__all__ = ["gpu_servers_block"]

SPEEDUP = "over the CPU"
FIGURES = (f"{ALONE}, p50 ms", *(f"{load}, texts/s" for load in BATCHED))
HEADINGS = ("Texts", "File", "Server", *(each for name in FIGURES for each in (name, SPEEDUP)))
NUMERIC = (False, False, False, *[True] * (len(HEADINGS) - 3))


def gpu_servers_block(files: Mapping[str, Path]) -> str:
    """Return a row for each workload, file and server, and the conditions, as Markdown.

    Speedups are within one file, where the servers took turns.

    Raises:
        ConfigError: a file has a part of its rounds, or is of other conditions than the first.
    """
    results = [read_serving(name, path) for name, path in files.items()]
    _check_alike(dict(zip(files, results, strict=True)))
    rows = [
        row
        for workload in results[0].workloads
        for result in results
        for row in _rows(ServingFigures(result, workload))
    ]
    heads, *cells = (tuple((cell,) for cell in row) for row in (HEADINGS, *rows))
    raw = f"Raw: {', '.join(f'`{name}`' for name in files)}"
    table = markdown_rows(heads, cells, NUMERIC)
    return "\n".join([*table, "", _conditions(results), "", raw, ""])


def _check_alike(results: Mapping[str, ServingBenchmark]) -> None:
    """Raise ConfigError where one line of conditions does not hold for all files."""
    first, *others = ((name, _alike(result)) for name, result in results.items())
    for name, conditions in others:
        if conditions != first[1]:
            raise ConfigError(
                f"{name} and {first[0]} differ in model, texts, settings or machine: give them "
                "tables of their own."
            )


def _alike(result: ServingBenchmark) -> tuple[object, ...]:
    settings = result.config.model_dump(exclude={"systems"})
    return result.task, result.parameters, result.workloads, settings, result.environment


def _rows(figures: ServingFigures) -> Iterator[list[str]]:
    for system in (OWN, OWN_ON_GPU):
        if not figures.visits(system):
            continue
        cells = [f"{figures.p50_ms(system, ALONE).value:.2f}"]
        cells += [f"{figures.texts_per_second(system, load).value:.4g}" for load in BATCHED]
        pairs = zip(cells, _speedups(figures, system), strict=True)
        title = WORKLOADS[figures.workload].title
        precision, server = figures.result.precision, SYSTEMS[system].title
        yield [title, precision, server, *(cell for pair in pairs for cell in pair)]


def _speedups(figures: ServingFigures, system: str) -> list[str]:
    """Return how many times as fast a system is as the CPU's; a dash where that was not there."""
    if system == OWN or not figures.visits(OWN):
        return [DASH] * len(FIGURES)
    ratios = [figures.latency_ratio(system, OWN, ALONE)]
    ratios += [figures.throughput_ratio(system, OWN, load) for load in BATCHED]
    return [*map(ratio, ratios)]


def _conditions(results: Sequence[ServingBenchmark]) -> str:
    first = results[0]
    here, config = first.environment, first.config
    load = busiest([each.load for result in results for each in result.visits])
    clients = ", ".join(f"{name}: {row.clients}" for name, row in LOADS.items())
    versions = versions_of(here, ("onnxruntime", "onnxruntime-gpu", *CLIENTS), on_gpu=True)
    return (
        f"A model of {first.parameters / 1e6:.0f}M parameters, texts of {first.task}; "
        f"{config.rounds} starts of each server; means, and speedups over the server on the CPU "
        "with intervals of 95 % over starts; a dash where it is the CPU's own row, or was not in "
        f"that run. Closed loop (clients, {clients}), requests prepared before; server and "
        f"generator share {here.cores} cores. A file is one run, and servers take turns in it. "
        f"Busiest start: {load}. {processor_name(here)}, {here.gpu or 'GPU not recorded'}; "
        f"{versions}."
    )
