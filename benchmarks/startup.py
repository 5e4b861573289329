"""Starts of `bertender serve`: how soon it responds, and the memory that it takes.

Time runs from the command to the moment at which the server says that it is ready, and to the end
of a first request. Then the texts of the task are classified, and the memory of every process of
the command is read: its own pages, and those of mapped files, such as libraries. Processes may
share these, so the sum counts each file once, at its largest.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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

MOST_TEXTS, STOP_TIMEOUT_S = 64, 30.0
"""Most texts of a request; longest wait for the command to end."""


def run(
    artifact: ServedArtifact,
    out: Out = None,
    task: TaskName = "sst2",
    server: Annotated[str, typer.Option(help="what runs the model behind the door")] = "triton",
    times: Annotated[int, typer.Option(help="starts", min=1)] = 5,
    pin: Annotated[bool, typer.Option(help="all of the server on core 0")] = True,
    noisy: Noisy = False,
) -> None:
    """Start the server several times, and record time and memory."""
    model = servable(artifact)
    texts = load_task(TaskConfig(task=task)).dev.examples
    rows, core = [], 0 if pin else None
    with watched(noisy, out) as meter:
        for _ in range(times):
            began = time.monotonic()
            with _command(model, server, core) as (process, url), Endpoint(url) as endpoint:
                ready_s = time.monotonic() - began
                endpoint.classify(texts[:1])
                first_response_s = time.monotonic() - began
                for place in range(0, len(texts), MOST_TEXTS):
                    endpoint.classify(texts[place : place + MOST_TEXTS])
                seconds = {"ready_s": ready_s, "first_response_s": first_response_s}
                rows.append({**seconds, **_memory(process)})
    about = {**facts_of(model), "task": task, "server": server}
    record("startup", rows, out, meter.load, **about)


@contextmanager
def _command(
    artifact: Artifact, server: str, core: int | None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `bertender serve`; yield its process and address once it says that it is ready."""
    ports = (f"--{name}-port=0" for name in ("http", "grpc", "metrics"))
    words = [sys.executable, "-m", "bertender", "serve", str(artifact.path), "--server", server]
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
        memory.append({"role": role, "own_bytes": sum(area.anonymous for area in areas)})
    return {"memory": memory, "file_bytes": files.total()}


def table(runs: Sequence[Run]) -> Table:
    """Seconds until the first response, and memory in all, by server; medians of the starts."""

    def middle(values: Iterable[float]) -> str:
        return two(statistics.median(values))

    rows = [
        [
            f"`--server {result.about['server']}`",
            middle(row["ready_s"] for row in result.rows),
            middle(row["first_response_s"] for row in result.rows),
            middle(_total(row) / 1e6 for row in result.rows),
        ]
        for result in runs
    ]
    note = (
        f"{runs[0].about['precision']} of 6 layers on one core; medians of {len(runs[0].rows)} "
        f"starts; pages of files are counted once. {machine(runs[0])}."
    )
    headings = ["Server", "Ready, s", "First response, s", "Memory of all processes, MB"]
    return Table(headings, rows, note)


def _total(row: Row) -> float:
    return float(row["file_bytes"] + sum(each["own_bytes"] for each in row["memory"]))
