"""An endpoint next to other ways to serve the same model, and to the model in process.

Every server of SERVERS that can run here is started on loopback, in turns, for every workload, and
gets LOADS in a closed loop, over gRPC or HTTP. The ceiling is the model in a process of its own on
the server's core.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import harness, servers
from benchmarks.cells import Table, machine, mean_over, ratio_over, task_title, two
from bertender.core.artifact import Artifact
from bertender.core.hardware import usable_cores
from bertender.problems import PROBLEMS
from bertender.text.batch import length_buckets, rows_of
from bertender.text.tokenizer import open_tokenizer
from serve.backend.opening import open_artifact
from serve.config import SERVED_RUNTIMES, BackendParameters, ServeConfig

LOADS: Mapping[str, tuple[int, int]] = {
    "one caller": (1, 1),
    "4 callers": (1, 4),
    "16 callers": (1, 16),
    "16 texts a request": (16, 8),
}
"""Load -> texts of a request, and clients that each wait for their response."""
CALLS = (1, 16, 64)
"""Texts of a call in process."""
WARM_UP_CALLS = 5
LONG_TAILED_TEXTS = 1000
MEDIAN_TOKENS, SPREAD = 24.0, 1.0
"""Log-normal distribution, the usual shape of the lengths of texts that users write."""


def run(
    artifact: harness.ServedArtifact,
    out: harness.Out = None,
    task: servers.TaskName = "sst2",
    systems: Annotated[str, typer.Option(help="by commas; all that can run by default")] = "",
    rounds: Annotated[int, typer.Option(min=3, help="starts of each server")] = 3,
    duration_s: Annotated[float, typer.Option(help="seconds of each load in a round")] = 1.5,
    pin: servers.Pin = True,
    noisy: harness.Noisy = False,
) -> None:
    """Measure an endpoint next to other servers of the same model."""
    model, pins, texts = servers.servable(artifact), servers.pins_of(pin), servers.texts_of(task)
    count = servers.token_counter(model)
    problem = PROBLEMS[model.card.task.problem_type]
    longest = problem.encoder(open_tokenizer(model.path), None).max_length
    workloads = {
        "natural": [text for text in texts if count(text) <= longest],
        "long-tailed": long_tailed(texts, count, longest),
    }
    lengths = {name: _lengths(sent, count) for name, sent in workloads.items()}
    chosen = harness.names_in("--systems", systems, servers.SERVERS)
    rows: list[harness.Row] = []
    with harness.watched(noisy, out) as meter:
        for number in range(rounds):
            for workload, sent in workloads.items():
                rounded = min(lengths[workload]["rounded"], longest)
                service = servers.Service(model, longest, rounded)
                place = {"workload": workload, "round": number}
                context = multiprocessing.get_context("spawn")
                with servers.pinned(pins.server), ProcessPoolExecutor(1, context) as pool:
                    cells = pool.submit(in_process, model, sent, duration_s).result()
                rows.append({"kind": "ceiling", **place, "cells": cells})
                able = [name for name in chosen if servers.SERVERS[name].serves(service)]
                # every round has another order
                for name in np.random.default_rng(number).permutation(able):
                    with servers.started(servers.SERVERS[name], service, sent, pins) as asked:
                        runs = [
                            {"load": load, **_figures(asked.closed(*sizes, duration_s))}
                            for load, sizes in LOADS.items()
                        ]
                    rows.append({"kind": "visit", "system": str(name), **place, "runs": runs})
    about = {**servers.facts_of(model), "workloads": lengths, "pins": asdict(pins)}
    harness.record("serving", rows, out, meter.load, **about)


def _figures(run: Any) -> harness.Row:
    latency = run.latency.p50_ms if run.latency else None
    return {"texts_per_second": run.texts_per_second, "p50_ms": latency, "outcomes": run.outcomes}


def _lengths(texts: Sequence[str], count: Callable[[str], int]) -> dict[str, Any]:
    """Return the lengths of some texts, in tokens."""
    lengths = np.array([count(text) for text in texts])
    longest = int(lengths.max())
    return {
        "texts": len(texts),
        "median": float(np.median(lengths)),
        "longest": longest,
        "rounded": -(-longest // 8) * 8,
    }


def long_tailed(texts: Sequence[str], count: Callable[[str], int], longest: int) -> list[str]:
    """Return texts that are joined until each has a length that is drawn."""
    draw = np.random.default_rng(0)
    most = min(longest, servers.LONGEST_TOKENS)
    lengths = np.exp(draw.normal(np.log(MEDIAN_TOKENS), SPREAD, LONG_TAILED_TEXTS))

    def words() -> Iterator[str]:
        while True:
            yield from texts[int(draw.integers(len(texts)))].split()

    stream = words()
    made = []
    for length in lengths:
        text = next(stream)
        for word in stream:
            longer = f"{text} {word}"
            if count(longer) > int(min(max(length, 4), most)):
                break
            text = longer
        made.append(text)
    return made


def in_process(model: Artifact, texts: Sequence[str], seconds: float) -> list[harness.Row]:
    """Return throughput and median latency of calls without pauses, each of some texts."""
    threads = usable_cores()
    tokens = SERVED_RUNTIMES[ServeConfig().runtime].tokens_of_buckets(threads)
    classifier = open_artifact(model, BackendParameters(threads=threads), threads)
    rows: list[harness.Row] = []
    for size in CALLS:
        draw, latencies = np.random.default_rng(0), list[float]()
        for call in range(-WARM_UP_CALLS, 10**9):
            drawn = [(texts[row],) for row in draw.integers(0, len(texts), size)]
            began = time.perf_counter()
            batch = classifier.encode(drawn)
            lengths = batch.arrays["attention_mask"].sum(axis=1).tolist()
            for bucket in length_buckets(lengths, tokens):
                classifier.run(rows_of(batch, bucket))
            if call >= 0:
                latencies.append(time.perf_counter() - began)
            if sum(latencies) > seconds:
                break
        rate, middle = size * len(latencies) / sum(latencies), 1000 * float(np.median(latencies))
        rows.append({"texts_per_call": size, "texts_per_second": rate, "p50_ms": middle})
    return rows


def table(runs: Sequence[harness.Run], workload: str = "natural") -> Table:
    """Throughput and latency of each server, and the share of the model in process."""
    (result,) = runs
    loads, ceilings = loads_of(result), _ceilings(result, workload)
    most = two(mean_over([_most(cells) for cells in ceilings]).value)
    alone = two(mean_over([cells[0]["p50_ms"] for cells in ceilings]).value)
    rows = [["the model in process", *[most] * len(loads), alone]]
    for name, server in servers.SERVERS.items():
        if rates := rates_of(result, workload, name):
            shares = [ratio_over([*map(_most, ceilings)], rates[load]).value for load in loads]
            cells = [
                f"{two(mean_over(rates[load]).value)} ({share:.0%})"
                for load, share in zip(loads, shares, strict=True)
            ]
            rows.append([server.title, *cells, two(waits_of(result, workload, name))])
    share = "; in brackets the share of the model in process, on the same cores"
    return Table(_headings(loads), rows, _note(result, workload, share))


def _headings(loads: Sequence[str]) -> list[str]:
    return ["Server", *(f"{load}, texts/s" for load in loads), "One caller, ms"]


def loads_of(result: harness.Run) -> list[str]:
    """Return the loads of several callers."""
    return [run["load"] for run in _rounds(result, kind="visit")[0]["runs"]][1:]


def _note(result: harness.Run, workload: str, more: str = "") -> str:
    lengths = result.about["workloads"][workload]
    return (
        f"{lengths['texts']:,} texts of {task_title(result.about['task'])}, "
        f"{lengths['median']:.0f} tokens in the median, {lengths['longest']} at most; means of "
        f"{len(_ceilings(result, workload))} starts{more}. {machine(result)}."
    )


def _ceilings(result: harness.Run, workload: str) -> list[list[harness.Row]]:
    """Return the results of the model in process, in the order of rounds."""
    return [row["cells"] for row in _rounds(result, kind="ceiling", workload=workload)]


def _most(cells: Sequence[harness.Row]) -> float:
    """Return the texts a second of the best number of texts a call."""
    return max(float(cell["texts_per_second"]) for cell in cells)


def _visits(result: harness.Run, workload: str, name: str) -> list[list[harness.Row]]:
    """Return the results of a server's starts, in the order of rounds."""
    return [row["runs"] for row in _rounds(result, system=name, workload=workload)]


def _rounds(result: harness.Run, **wanted: str) -> list[harness.Row]:
    rows = [row for row in result.rows if wanted.items() <= row.items()]
    return sorted(rows, key=lambda row: int(row["round"]))


def rates_of(result: harness.Run, workload: str, name: str) -> dict[str, list[float]]:
    """Return the texts a second of each load, a figure a start; none where it was not measured."""
    runs = [run for visit in _visits(result, workload, name) for run in visit]
    return {
        load: [float(run["texts_per_second"]) for run in own]
        for load, own in harness.grouped(runs, "load").items()
    }


def waits_of(result: harness.Run, workload: str, name: str) -> float:
    """Return the median latency of one caller, the mean over starts."""
    return mean_over([runs[0]["p50_ms"] for runs in _visits(result, workload, name)]).value


def gpu_table(runs: Sequence[harness.Run]) -> Table:
    """The endpoint on a GPU next to the one on its CPU."""
    rows, loads = [], loads_of(runs[0])
    for result in runs:
        for name, server in servers.SERVERS.items():
            if rates := rates_of(result, "natural", name):
                cells = [two(mean_over(rates[load]).value) for load in loads]
                title = f"{server.title}, {result.about['precision']}"
                rows.append([title, *cells, two(waits_of(result, "natural", name))])
    return Table(_headings(loads), rows, _note(runs[0], "natural"))


def long_table(runs: Sequence[harness.Run]) -> Table:
    """The same with a long tail of lengths."""
    return table(runs, "long-tailed")
