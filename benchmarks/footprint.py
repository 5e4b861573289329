"""Footprint of commands: the cost of their help, and the product files that a run executes."""

from __future__ import annotations

import csv
import inspect
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from bertender.cli.main import COMMANDS, build_app
from bertender.core.errors import BertenderError
from bertender.core.files import CACHE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("bertender", "distill", "export", "quantize", "serve")
LISTS = ("tasks", "methods", "schemes", "recipes")


class FootprintError(BertenderError):
    """A command failed, so that its footprint says nothing."""


class Cost(NamedTuple):
    """Cost of a command in a fresh process."""

    command: str
    processor_s: float
    memory_mb: float


def cost_of(*words: str) -> Cost:
    """Run a command of bertender once, in a fresh process.

    Raises:
        FootprintError: the command failed.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "bertender", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise FootprintError(f"bertender {' '.join(words)}: exit code {process.returncode}")
    return Cost(" ".join(words), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def costs_of_help() -> list[Cost]:
    """Return the cost of each command's help, and of each list."""
    return [*(cost_of(name, "--help") for name in COMMANDS), *map(cost_of, LISTS)]


class Profile:
    """The product files whose functions run, in this thread and those that start later.

    Functions that run while a module is imported do not count.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.local = threading.local()
        self.folders = tuple(f"{ROOT / package}{os.sep}" for package in PRODUCT)

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        imports = getattr(self.local, "imports", 0)
        if code.co_name == "<module>":
            self.local.imports = imports + {"call": 1, "return": -1}.get(event, 0)
            return
        # the body of a class runs as a function does, but is not optimized
        is_function = event == "call" and code.co_flags & inspect.CO_OPTIMIZED
        if is_function and not imports and code.co_filename.startswith(self.folders):
            self.files.add(str(Path(code.co_filename).relative_to(ROOT)))


Scenario = Callable[[Path, Profile], object]


def executed(scenario: Scenario, folder: Path) -> set[str]:
    """Return the product files that a scenario executes, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_profiled, scenario, folder).result()


def _profiled(scenario: Scenario, folder: Path) -> set[str]:
    profile = Profile()
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        scenario(folder, profile)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return profile.files


def prepare(folder: Path, profile: Profile) -> None:
    """Fine-tune a toy teacher on CSV files, and export it."""
    from tests.toy_models import save_encoder
    from tests.toys import toy_task

    task = toy_task()
    for name, split in (("train", task.train), ("dev", task.dev)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("text", "label"))
            for (text,), label in zip(split.examples, split.label_ids, strict=True):
                rows.writerow((text, task.labels[label]))
    encoder = save_encoder("bert", folder / "encoder")
    data = ("--train", folder / "train.csv", "--dev", folder / "dev.csv")
    training = ("--epochs", 6, "--learning-rate", 3e-3, "--batch-size", 16)
    _command("finetune", "--teacher", encoder, *data, *training, "--out", folder / "teacher")
    _command("export", folder / "teacher", "--out", folder / "onnx")


def distilling(folder: Path, profile: Profile) -> None:
    """`distill --layers 3`."""
    teacher, out = folder / "teacher", folder / "student"
    _command("distill", "--teacher", teacher, "--layers", 3, "--allow-constant", "--out", out)


def quantizing(folder: Path, profile: Profile) -> None:
    """`quantize`, with its gate."""
    _command("quantize", folder / "onnx", "--out", folder / "int8")


def answering(folder: Path, profile: Profile) -> None:
    """A request in the backend, whose start does not count."""
    from bertender.core.artifact import Artifact
    from serve.config import ServeConfig
    from tests.serve.triton_stand_in import request_of, responses_of, running_backend

    artifact = Artifact.load(folder / "onnx")
    with running_backend(artifact, folder / "models", ServeConfig()) as backend:
        profile.files.clear()
        responses_of(backend, request_of(("apple pear",)))


def _command(name: str, *words: object) -> None:
    arguments = ["--quiet", name, *map(str, words)]
    with redirect_stdout(io.StringIO()):
        code: Any = build_app(name)(arguments, standalone_mode=False)
    if code:
        raise FootprintError(f"bertender {' '.join(arguments)}: exit code {code}")
