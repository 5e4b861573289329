"""Measures the memory and the disk that each step of a chain takes, each command in a process.

    python -m benchmarks.step_memory --out FILE.json [--task docs] [--rows 2000] [--encoder NAME]

Nothing is timed, so that other work on the machine does no harm. Memory is read in two ways: the
largest process as the kernel counts it, and all processes of a command together, sampled.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Annotated

import psutil
import typer
from pydantic import Field

from benchmarks.common.options import OutFile
from bertender.core.config import Record
from bertender.core.errors import BertenderError
from bertender.core.files import CACHE_VARIABLE, save_result
from bertender.core.machine import Environment, environment

__all__ = ["COMMANDS", "Step", "StepMemoryBenchmark", "StepUse", "measure_step"]

BERTENDER = (sys.executable, "-m", "bertender")
SECONDS_BETWEEN_SAMPLES = 0.1
SERVE = "serve"
ENCODER = "all-MiniLM-L6-v2"
COMMANDS = (
    "baseline --task {task} --max-train {rows} --out words",
    "finetune --teacher {encoder} --task {task} --max-train {rows} --epochs 1 --out teacher",
    "distill --teacher teacher --epochs 1 --out student",
    "prune student --heads 0.25 --ffn 0.25 --out pruned",
    "export student --out onnx",
    "quantize onnx --scheme dynamic --out dynamic",
    "quantize onnx --scheme static --out static",
    "quantize student --scheme qat --out qat",
    "verify student dynamic",
    "compare teacher student onnx dynamic --processes 1 --rounds 2 --noisy",
    SERVE + " dynamic --http-port 0 --grpc-port 0 --metrics-port 0 --json",
)
"""Of a chain, in its order. The first reads the data of the task; `serve` ends when it is ready."""


class MeasuredCommandError(BertenderError):
    """A command of the chain failed, so that there is nothing to report."""


@dataclass(frozen=True)
class Step:
    """One command of the chain, and where it runs."""

    command: str
    folder: Path

    @property
    def arguments(self) -> list[str]:
        """Arguments of the process."""
        return [*BERTENDER, *shlex.split(self.command)]

    @property
    def variables(self) -> dict[str, str]:
        """The environment, with a cache folder that is counted too."""
        # the package next to the benchmark must be found from the other folder as well
        path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
        return {**os.environ, CACHE_VARIABLE: str(self.folder / "cache"), "PYTHONPATH": path}


class StepUse(Record):
    """Time, memory and disk of one command."""

    command: str
    largest_process_bytes: int = Field(description="peak resident memory, as the kernel counts it")
    all_processes_bytes: int = Field(description="peak of their shares together, sampled")
    most_disk_bytes: int = Field(description="more in its folder and cache than before, sampled")
    left_on_disk_bytes: int = Field(description="more in its folder and cache than before")


class StepMemoryBenchmark(Record):
    """A chain of commands on one task."""

    task: str
    encoder: str = Field(description="that the teacher starts from")
    rows: int = Field(description="training texts, at most")
    threads: str = Field(description="OMP_NUM_THREADS; empty where it is not set")
    environment: Environment
    steps: tuple[StepUse, ...]


@dataclass
class _Peaks:
    """The largest samples of one command."""

    memory: int = 0
    disk: int = 0
    stopped: Event = field(default_factory=Event)

    def watch(self, process: int, folder: Path) -> None:
        while not self.stopped.wait(SECONDS_BETWEEN_SAMPLES):
            self.memory = max(self.memory, _memory_of_all(process))
            self.disk = max(self.disk, _bytes_in(folder))


def _memory_of_all(process: int) -> int:
    """Return the proportional memory of a process and its children, 0 for those that ended."""
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(process)
        for each in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += each.memory_full_info().pss
    return total


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file may go meanwhile
            status = path.lstat()
            total += 0 if path.is_dir() else status.st_size
    return total


@contextmanager
def _watched(process: int, folder: Path) -> Iterator[_Peaks]:
    peaks = _Peaks()
    thread = Thread(target=peaks.watch, args=(process, folder), daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        peaks.stopped.set()
        thread.join()


def measure_step(step: Step) -> StepUse:
    """Run a command, and return what it took.

    Raises:
        MeasuredCommandError: the command failed.
    """
    before = _bytes_in(step.folder)
    with (
        subprocess.Popen(
            step.arguments, cwd=step.folder, env=step.variables, stdout=subprocess.PIPE, text=True
        ) as process,
        _watched(process.pid, step.folder) as peaks,
    ):
        largest, code = _ended(process, step.command.startswith(SERVE))
    if code:
        raise MeasuredCommandError(
            f"bertender {step.command}: exit code {code}. Run it by itself in {step.folder} to see "
            "why, then measure again."
        )
    left = _bytes_in(step.folder)
    return StepUse(
        command=step.command,
        largest_process_bytes=largest,
        all_processes_bytes=peaks.memory,
        most_disk_bytes=max(peaks.disk, left) - before,
        left_on_disk_bytes=left - before,
    )


def _ended(process: subprocess.Popen[str], until_ready: bool) -> tuple[int, int]:
    """Wait for a process; return the peak of its largest process in bytes, and its exit code."""
    assert process.stdout is not None, "it was opened with a pipe"
    if until_ready and process.stdout.readline():
        process.send_signal(signal.SIGINT)
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024, process.returncode


def measure_chain(commands: Sequence[str], folder: Path) -> tuple[StepUse, ...]:
    """Run the commands in their order, and return what each took."""
    uses = []
    for command in commands:
        uses.append(measure_step(Step(command, folder)))
        typer.echo(uses[-1].model_dump_json())
    return tuple(uses)


def run(
    out: OutFile,
    task: Annotated[str, typer.Option(help="a name from `bertender tasks`")] = "docs",
    rows: Annotated[int, typer.Option(help="training texts, at most")] = 2000,
    encoder: Annotated[str, typer.Option(help="that the teacher starts from")] = ENCODER,
) -> None:
    """Measure each step of the chain in a process of its own, one after another."""
    commands = [command.format(task=task, rows=rows, encoder=encoder) for command in COMMANDS]
    with TemporaryDirectory() as folder:
        steps = measure_chain(commands, Path(folder))
    benchmark = StepMemoryBenchmark(
        task=task,
        encoder=encoder,
        rows=rows,
        threads=os.environ.get("OMP_NUM_THREADS", ""),
        environment=environment(),
        steps=steps,
    )
    save_result(benchmark, out)
