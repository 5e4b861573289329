"""The table of an endpoint on a GPU next to the same one on the CPU, from raw results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.common.versions import versions_of
from benchmarks.serving.figures import ServingFigures
from benchmarks.serving.records import LOADS, ServingBenchmark
from benchmarks.serving.systems import OWN, OWN_ON_GPU, SYSTEMS
from benchmarks.serving.table import CLIENTS, read_serving
from benchmarks.serving.texts import WORKLOADS
from bertender.core.processors import processor_name
from bertender.core.speedup import Speedup
from bertender.measure.load import busiest
from bertender.report.cells import DASH, markdown_rows

__all__ = ["gpu_servers_block"]

ALONE, *MANY = LOADS
HEADINGS = (
    "Texts",
    "File",
    "Server",
    f"{ALONE}, p50 ms",
    *(title for load in MANY for title in (f"{load}, texts/s", "times the CPU's")),
)
NUMERIC = (False, False, False, *[True] * (len(HEADINGS) - 3))


def gpu_servers_block(files: Mapping[str, Path]) -> str:
    """Return a row for each workload, file and server, and the conditions, as Markdown.

    Ratios are within one file, where the servers took turns.

    Raises:
        ConfigError: a file has a part of its rounds.
    """
    results = [read_serving(name, path) for name, path in files.items()]
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


def _rows(figures: ServingFigures) -> Iterator[list[str]]:
    for system in (OWN, OWN_ON_GPU):
        if not figures.visits(system):
            continue
        cells = [f"{figures.p50_ms(system, ALONE).value:.2f}"]
        for load in MANY:
            cells.append(f"{figures.texts_per_second(system, load).value:.4g}")
            cells.append(_ratio(figures, load) if system == OWN_ON_GPU else "")
        title = WORKLOADS[figures.workload].title
        yield [title, figures.result.precision, SYSTEMS[system].title, *cells]


def _ratio(figures: ServingFigures, load: str) -> str:
    """Return the throughput on the GPU over that on the CPU."""
    if not figures.visits(OWN):
        return DASH
    ratio: Speedup = figures.over(OWN, OWN_ON_GPU, load)
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _conditions(results: list[ServingBenchmark]) -> str:
    first = results[0]
    here, config = first.environment, first.config
    load = busiest([each.load for result in results for each in result.visits])
    clients = ", ".join(f"{name}: {row.clients} clients" for name, row in LOADS.items())
    versions = versions_of(here, ("onnxruntime", "onnxruntime-gpu", *CLIENTS))
    return (
        f"A model of {first.parameters / 1e6:.0f}M parameters, texts of {first.task}; "
        f"{config.rounds} starts of each server; means, and ratios with intervals of 95 % over "
        f"starts. Closed loop ({clients}), requests prepared before; server and generator share "
        f"{here.cores} cores. A file is one run, and servers take turns in it. Busiest start: "
        f"{load}. {processor_name(here)}, {here.gpu}; {versions}."
    )
