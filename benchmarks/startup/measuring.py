"""Starts `bertender serve` several times: how soon it responds, and the memory that it takes.

    python -m benchmarks.startup ARTIFACT --out FILE.json [--task sst2] [--times 5]

A start is timed from the command to the moment at which the server says that it is ready, and to
the end of a first request. Then the texts of the task are classified, and the memory of every
process that the command began is read: what is resident of it, and what of that is its own. The
rest are files that are mapped, as libraries are: several processes may share their pages, and the
sum over processes has each file once, at its largest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import psutil
import typer
from pydantic import Field

from benchmarks.common.options import HeldOutTaskOption, OutFile, ServedArtifactArgument
from benchmarks.common.pinning import NOT_PINNED, Pins, pinned
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving.http_server import READY_TIMEOUT_S
from benchmarks.serving.prepared import check_servable
from benchmarks.serving.watched_server import role_of
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ServingError
from bertender.core.machine import Environment, environment
from bertender.core.machine_load import LoadMeter, MachineLoad, busiest, check_load, check_load_now
from bertender.core.progress import progress_bar, show_progress
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from bertender.text.batch import Example
from serve.client.endpoint import Endpoint
from serve.config import PORT_FIELDS

__all__ = ["COMMAND", "ProcessMemory", "Start", "StartupBenchmark", "measure_starts", "run"]

COMMAND = "command"
"""The process of `bertender serve` itself."""
MOST_TEXTS = 64
"""Of a request."""
STOP_TIMEOUT_S = 30.0


class ProcessMemory(Record):
    """Memory of a process."""

    role: str = Field(description="command, supervisor, server or stub")
    resident_bytes: int
    own_bytes: int = Field(description="of them those of no file, and those that it has changed")


class Start(Record):
    """One start of the server."""

    ready_s: float = Field(description="from the command on")
    first_response_s: float = Field(description="likewise")
    memory: tuple[ProcessMemory, ...] = Field(description="after all texts")
    file_bytes: int = Field(description="resident pages of files, each file once, at its largest")

    @property
    def total_bytes(self) -> int:
        """Memory of all processes, pages of files counted once."""
        return sum(each.own_bytes for each in self.memory) + self.file_bytes


class StartupBenchmark(Record):
    """Every start, and the conditions."""

    task: str
    name: str
    digest: str
    precision: str
    texts: int
    pins: Pins
    starts: tuple[Start, ...]
    load: MachineLoad
    environment: Environment


def measure_starts(
    artifact: Artifact, texts: Sequence[Example], times: int, pins: Pins, noisy: bool
) -> StartupBenchmark:
    """Start the server so many times, classify all texts, and stop it.

    Raises:
        ModelError: the artifact is not an ONNX classifier of single texts.
        ServingError: the server did not start.
        MachineBusyError: other work disturbs the figures, and noisy ones are not allowed.
    """
    check_servable(artifact)
    pins.check()
    if not noisy:
        check_load_now()
    starts, loads = [], []
    with progress_bar("starts", total=times) as bar:
        for _ in range(times):
            start, load = _start(artifact, texts, pins)
            check_load(load, noisy)
            starts.append(start)
            loads.append(load)
            bar.advance()
    return StartupBenchmark(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        texts=len(texts),
        pins=pins,
        starts=tuple(starts),
        load=busiest(loads),
        environment=environment(),
    )


def _start(artifact: Artifact, texts: Sequence[Example], pins: Pins) -> tuple[Start, MachineLoad]:
    """Start the server once; return what it took, and the other load meanwhile."""
    began, meter = time.monotonic(), LoadMeter()
    with _command(artifact, pins) as (process, url), Endpoint(url) as endpoint:
        ready_s = time.monotonic() - began
        endpoint.classify(texts[:1])
        first_response_s = time.monotonic() - began
        for place in range(0, len(texts), MOST_TEXTS):
            endpoint.classify(texts[place : place + MOST_TEXTS])
        (memory, file_bytes), load = _memory(process), meter.stop()  # while all of them run
    start = Start(
        ready_s=ready_s, first_response_s=first_response_s, memory=memory, file_bytes=file_bytes
    )
    return start, load


@contextmanager
def _command(artifact: Artifact, pins: Pins) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `bertender serve`; yield its process and address once it says that it is ready."""
    ports = [word for name in PORT_FIELDS for word in (f"--{name.replace('_', '-')}", "0")]
    words = [sys.executable, "-m", "bertender", "serve", str(artifact.path), "--no-profile"]
    with pinned(pins.server):
        process = subprocess.Popen(
            [*words, "--json", *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    try:
        yield process, json.loads(_first_line(process))["http"]
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    timer = threading.Timer(READY_TIMEOUT_S, process.terminate)  # it then ends its server
    timer.start()
    try:
        line = process.stdout.readline()
    finally:
        timer.cancel()
    if not line:
        raise ServingError(
            f"`bertender serve` ended, or was not ready in {READY_TIMEOUT_S:g} s: run it by hand "
            "to see why."
        )
    return line


def _memory(process: subprocess.Popen[bytes]) -> tuple[tuple[ProcessMemory, ...], int]:
    """Return the memory of each process that the command began, and that of files."""
    command = psutil.Process(process.pid)
    roles = [(COMMAND, command)]
    roles += [(role_of(each.name()), each) for each in command.children(recursive=True)]
    maps = [(role, each.memory_maps(grouped=True)) for role, each in roles]
    files: Counter[str] = Counter()
    for each in (area for _, areas in maps for area in areas):
        files[each.path] = max(files[each.path], each.rss - each.anonymous)
    memory = tuple(
        ProcessMemory(
            role=role,
            resident_bytes=sum(each.rss for each in areas),
            own_bytes=sum(each.anonymous for each in areas),
        )
        for role, areas in maps
    )
    return memory, files.total()


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
    times: Annotated[int, typer.Option(help="starts", min=1)] = 5,
    pin: Annotated[bool, typer.Option(help="all of the server on core 0")] = True,
    noisy: NoisyFlag = False,
) -> None:
    """Start the server several times, and write what it takes."""
    show_progress()
    check_noisy_out(noisy, out)
    pins = Pins(server=0) if pin else NOT_PINNED
    texts = load_task(TaskConfig(task=task)).dev.examples
    result = measure_starts(Artifact.load(artifact), texts, times, pins, noisy)
    for start in result.starts:
        typer.echo(f"ready after {start.ready_s:.2f} s, {start.total_bytes / 1e6:.0f} MB")
    save_benchmark(result, out)
