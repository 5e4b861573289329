"""Starts of `bertender serve`: how soon it responds, and the memory that it takes.

Time runs from the command to the moment at which the server says that it is ready, and to the end
of a first request. Then the texts of the task are classified, and the memory of every process of
the command is read: its resident pages, and its own pages among them. The others are mapped files,
such as libraries. Processes may share their pages, so the sum counts each file once, at its
largest.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import psutil
import typer

from benchmarks.cells import Table, machine, two
from benchmarks.harness import Noisy, Out, Row, Run, ServedArtifact, record, watched
from benchmarks.servers import TaskName, facts_of, pinned, role_of, servable
from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.client.endpoint import Endpoint

MOST_TEXTS = 64
"""Most texts of a request."""
STOP_TIMEOUT_S = 30.0


def run(
    artifact: ServedArtifact,
    out: Out = None,
    task: TaskName = "sst2",
    times: Annotated[int, typer.Option(help="starts", min=1)] = 5,
    pin: Annotated[bool, typer.Option(help="all of the server on core 0")] = True,
    noisy: Noisy = False,
) -> None:
    """Start the server several times, and record time and memory."""
    model = servable(artifact)
    texts = load_task(TaskConfig(task=task)).dev.examples
    rows = []
    with watched(noisy, out) as meter:
        for _ in range(times):
            began = time.monotonic()
            with _command(model, 0 if pin else None) as (process, url), Endpoint(url) as endpoint:
                ready_s = time.monotonic() - began
                endpoint.classify(texts[:1])
                first_response_s = time.monotonic() - began
                for place in range(0, len(texts), MOST_TEXTS):
                    endpoint.classify(texts[place : place + MOST_TEXTS])
                seconds = {"ready_s": ready_s, "first_response_s": first_response_s}
                rows.append({**seconds, **_memory(process)})
    about = {**facts_of(model), "task": task}
    record("startup", rows, out, meter.load, **about)


@contextmanager
def _command(artifact: Artifact, core: int | None) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `bertender serve`; yield its process and address once it says that it is ready."""
    ports = (f"--{name}-port=0" for name in ("http", "grpc", "metrics"))
    words = [sys.executable, "-m", "bertender", "serve", str(artifact.path)]
    with pinned(core):
        process = subprocess.Popen(
            [*words, "--json", *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ServingError("`bertender serve` ended: run it by hand to see why.")
        yield process, json.loads(line)["http"]
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _memory(process: subprocess.Popen[bytes]) -> Row:
    """Return the memory of each process of the command, and of mapped files."""
    command = psutil.Process(process.pid)
    processes = [("command", command)]
    processes += [(role_of(each.name()), each) for each in command.children(recursive=True)]
    memory, files = [], Counter[str]()
    for role, each in processes:
        areas = each.memory_maps(grouped=True)
        for area in areas:
            files[area.path] = max(files[area.path], area.rss - area.anonymous)
        sizes = {"resident_bytes": sum(area.rss for area in areas)}
        sizes |= {"own_bytes": sum(area.anonymous for area in areas)}
        memory.append({"role": role, **sizes})
    return {"memory": memory, "file_bytes": files.total()}


def table(runs: Sequence[Run]) -> Table:
    """Seconds until the first response, and memory in all; medians of the starts."""
    (result,) = runs

    def middle(values: Iterator[float]) -> str:
        return two(statistics.median(values))

    totals = (_total(row) / 1e6 for row in result.rows)
    rows = [
        ["Ready", f"{middle(row['ready_s'] for row in result.rows)} s"],
        ["First response", f"{middle(row['first_response_s'] for row in result.rows)} s"],
        ["Memory of all processes", f"{middle(totals)} MB"],
    ]
    note = (
        f"{result.about['precision']} of 6 layers on one core; medians of {len(result.rows)} "
        f"starts; pages of files are counted once. {machine(result)}."
    )
    return Table(["What", "Value"], rows, note)


def _total(row: Row) -> float:
    return float(row["file_bytes"] + sum(each["own_bytes"] for each in row["memory"]))
