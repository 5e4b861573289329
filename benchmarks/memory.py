"""Memory and disk that each command of a chain takes.

Nothing is timed, so that other work on the machine does no harm. Memory is the peak of the
command's largest process, as the kernel counts it; disk is sampled.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.cells import Table, machine, two
from benchmarks.harness import Out, Row, Run, record, used_by
from bertender.core.files import CACHE_VARIABLE

SECONDS_BETWEEN_SAMPLES = 0.1
TASK, TEXTS, ENCODER = "docs", 2000, "all-MiniLM-L6-v2"
SERVE = "serve"
COMMANDS = (
    f"baseline --task {TASK} --max-train {TEXTS} --out words",
    f"finetune --teacher {ENCODER} --task {TASK} --max-train {TEXTS} --epochs 1 --out teacher",
    "distill --teacher teacher --epochs 1 --out student",
    "prune student --heads 0.25 --ffn 0.25 --out pruned",
    "export student --out onnx",
    "quantize onnx --scheme dynamic --out dynamic",
    "quantize onnx --scheme static --out static",
    "quantize student --scheme qat --out qat",
    "verify student dynamic",
    "compare teacher student onnx dynamic --processes 1 --rounds 2 --noisy",
    f"{SERVE} dynamic --http-port 0 --grpc-port 0 --metrics-port 0 --json",
)
"""Commands of a chain, in order. The first reads the task's data; `serve` ends when it is ready."""


def run(out: Out = None) -> None:
    """Measure each command of the chain in a process of its own."""
    with TemporaryDirectory() as folder:
        rows = [measured(command, Path(folder)) for command in COMMANDS]
    threads = os.environ.get("OMP_NUM_THREADS", "")
    about: Row = {"task": TASK, "encoder": ENCODER, "max_train": TEXTS, "omp_threads": threads}
    record("memory", rows, out, **about)


def measured(command: str, folder: Path) -> Row:
    """Run a command of bertender in a folder, and return its memory and disk.

    Raises:
        MeasuredCommandError: the command failed.
    """
    before, most, ended = _bytes_in(folder), [0], Event()

    def watch() -> None:
        while not ended.wait(SECONDS_BETWEEN_SAMPLES):
            most[0] = max(most[0], _bytes_in(folder))

    # the package next to the benchmark must be found from the other folder as well
    path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    variables = {**os.environ, CACHE_VARIABLE: str(folder / "cache"), "PYTHONPATH": path}
    words, is_server = shlex.split(command), command.startswith(SERVE)
    watcher = Thread(target=watch)
    watcher.start()
    try:
        used = used_by(*words, until_ready=is_server, cwd=folder, env=variables)
    finally:
        ended.set()
        watcher.join()
    left = _bytes_in(folder)
    return {
        "command": command,
        "largest_process_bytes": used.peak_bytes,
        "most_disk_bytes": max(most[0], left) - before,
        "left_on_disk_bytes": left - before,
    }


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file may go meanwhile
            total += 0 if path.is_dir() else path.lstat().st_size
    return total


def table(runs: Sequence[Run]) -> Table:
    """Memory and disk of each command."""
    (result,) = runs
    sizes = ("largest_process_bytes", "most_disk_bytes", "left_on_disk_bytes")
    rows = [
        [_name(row["command"]), *(two(row[size] / 1e6) for size in sizes)] for row in result.rows
    ]
    about = result.about
    note = (
        f"{about['encoder']} on {about['max_train']:,} texts of the task `{about['task']}`; memory "
        f"is the peak of the largest process, disk is sampled. {machine(result)}."
    )
    return Table(["Command", "Memory, MB", "Disk meanwhile, MB", "Left, MB"], rows, note)


def _name(command: str) -> str:
    words = command.split()
    scheme = f" --scheme {words[words.index('--scheme') + 1]}" if "--scheme" in words else ""
    return f"`{words[0]}{scheme}`"
