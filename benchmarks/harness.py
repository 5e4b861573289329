"""The record of a run, its file, and arguments that several benchmarks share."""

from __future__ import annotations

import datetime
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record, parts_of
from bertender.core.errors import BertenderError, ConfigError, MachineBusyError
from bertender.core.files import save_text
from bertender.core.machine import (
    BUSY_SHARE,
    Environment,
    LoadMeter,
    MachineLoad,
    environment,
    noisy_loads,
    watched_load,
)

RESULTS = Path(__file__).resolve().parent / "results"

Row = dict[str, Any]

OnnxArtifacts = Annotated[list[Path], typer.Argument(help="ONNX artifacts of one task")]
ServedArtifact = Annotated[Path, typer.Argument(help="ONNX artifact of a task on single texts")]
Out = Annotated[Path | None, typer.Option(help="the JSON to write; it keeps runs of other tasks")]
Noisy = Annotated[bool, typer.Option("--noisy", help="time on a busy machine, unpublished")]
Threads = Annotated[int, typer.Option(help="of every runtime; 0: every core")]
Work = Annotated[Path, typer.Option(help="folder of models, which later calls use again")]


class Run(Record):
    """One run of a subject: how it was made, on which machine, and what came of it."""

    subject: str
    date: str
    command: str
    note: str = ""
    environment: Environment
    load: MachineLoad | None = None
    about: dict[str, Any] = Field({}, description="settings and conditions that rows share")
    rows: list[Row]

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of a run in its file: a new run replaces the earlier one of the same key."""
        about = self.about
        named = (str(about.get(name, "")) for name in ("part", "task", "model", "layers"))
        return (self.environment.cpu_model, *self.environment.cpu_flags, *named)


class Results(Record):
    """A file of results."""

    runs: list[Run]


def recorded(
    subject: str, rows: Sequence[Row], load: MachineLoad | None = None, **about: Any
) -> Run:
    """Return the record of rows that this command has measured."""
    words = [Path(word).name if word.startswith(("/", ".", "~")) else word for word in sys.argv[1:]]
    return Run(
        subject=subject,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=shlex.join(["python", "-m", "benchmarks", *words]),
        environment=environment(),
        load=load,
        about=about,
        rows=list(rows),
    )


def newest(name: str) -> Path:
    """Return the newest file `DATE-NAME.json` of the results."""
    files = [path for path in RESULTS.glob(f"*-{name}.json") if path.stem[11:] == name]
    if not files:
        raise ConfigError(f"no results of {name!r} in {RESULTS}.")
    return max(files)


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a file.

    Raises:
        MachineBusyError: the file has figures of a busy machine.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if loads := noisy_loads(content):
        raise MachineBusyError(
            f"{path.name} holds figures of a busy machine ({loads[0]}; allowed are "
            f"{BUSY_SHARE:.0%}), and no table is made from them. Measure it again where nothing "
            "else runs."
        )
    return Results.model_validate(content).runs


def save_runs(runs: Sequence[Run], out: Path | None) -> None:
    """Write runs to a file, and keep its runs of other tasks, models and machines.

    Raises:
        MachineBusyError: figures of a busy machine would enter the published results.
    """
    if out is None:
        return
    for run in runs:
        loads = noisy_loads(run.model_dump(mode="json"))
        if loads and RESULTS in out.resolve().parents:
            raise MachineBusyError(
                f"{out.name} would hold figures of a busy machine ({loads[0]}; allowed are "
                f"{BUSY_SHARE:.0%}), which never enter results/. Stop the other work and run it "
                "again, or give an --out elsewhere."
            )
    known = Results.model_validate_json(out.read_bytes()).runs if out.exists() else []
    others = [each for each in known if each.key not in {run.key for run in runs}]
    save_text(_as_text([*others, *runs]), out)


def record(
    subject: str, rows: Sequence[Row], out: Out, load: MachineLoad | None = None, **about: Any
) -> None:
    """Write the record of rows that this command has measured to a file, as `save_runs` does."""
    save_runs([recorded(subject, rows, load, **about)], out)


def _as_text(runs: Sequence[Run]) -> str:
    """Return JSON with a row a line, which is a third as long as an indented one."""
    parts = []
    for run in runs:
        head = run.model_dump(mode="json", exclude={"rows"})
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in run.rows)
        parts.append(f'{json.dumps(head, separators=(",", ":"))[:-1]},"rows":[\n{rows}\n]}}')
    return '{"runs":[\n' + ",\n".join(parts) + "\n]}\n"


LAUNCHER = """
import os, signal, sys
report, *words = sys.argv[1:]
pid = os.posix_spawn(words[0], words, os.environ)
def stop(*_):
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        pass  # it has just ended
signal.signal(signal.SIGINT, stop)
_, status, usage = os.wait4(pid, 0)
with open(report, "w") as file:
    seconds = usage.ru_utime + usage.ru_stime
    print(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss, file=file)
"""
"""Starts a command, and reports its exit code and what it used. The kernel counts the peak of the
process that starts a command to the command's own, so that one starts it that is small."""


class MeasuredCommandError(BertenderError):
    """A measured command failed, so that there is nothing to report."""


class Used(NamedTuple):
    """Output of a command, and what it used."""

    output: str
    processor_s: float
    peak_bytes: int
    """Peak memory of the command's largest process."""


def used_by(*words: str, until_ready: bool = False, **options: Any) -> Used:
    """Run a command of bertender to its end, in a process of its own.

    Args:
        words: the command.
        until_ready: end it with Ctrl-C after its first line.
        options: of the process, such as its folder.

    Raises:
        MeasuredCommandError: the command failed.
    """
    with NamedTemporaryFile("r") as report:
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, report.name]
        command = [*launcher, sys.executable, "-m", "bertender", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
            assert process.stdout is not None
            if until_ready and process.stdout.readline():
                process.send_signal(signal.SIGINT)
            output = process.stdout.read()
        code, *used = report.read().split() or ["unknown"]
    if code != "0":
        raise MeasuredCommandError(
            f"bertender {shlex.join(words)}: exit code {code}. Run it by itself to see why."
        )
    processor_s, peak_kib = used
    return Used(output, float(processor_s), int(peak_kib) * 1024)


@contextmanager
def watched(noisy: bool, out: Path | None) -> Iterator[LoadMeter]:
    """Watch the machine while figures are timed; `load` of the meter covers the block.

    Raises:
        MachineBusyError: other work disturbs the figures, and noisy ones are not allowed.
    """
    if noisy and out is not None and RESULTS in out.resolve().parents:
        raise ConfigError(
            "--noisy: figures of a busy machine never enter results/. Give an --out elsewhere."
        )
    with watched_load(noisy) as meter:
        yield meter


def names_in(option: str, value: str, known: Collection[str]) -> list[str]:
    """Return the names of a list by commas, or all known names if it is empty.

    Raises:
        ConfigError: a name is not known, or a list has none.
    """
    names = [*dict.fromkeys(filter(None, parts_of(value)))]
    unknown = [name for name in names if name not in known]
    if unknown or (value and not names):
        raise ConfigError(f"{option} {value!r}: there are {', '.join(known)}.")
    return names or list(known)


def loaded(paths: Sequence[Path]) -> list[Artifact]:
    """Return the artifacts of some folders, whose names name the rows.

    Raises:
        ConfigError: two have one name.
    """
    artifacts = [Artifact.load(path) for path in paths]
    names = [each.name for each in artifacts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two artifacts are called {twice[0]!r}: give each folder its own name.")
    return artifacts


def grouped(rows: Sequence[Row], key: str = "name") -> Mapping[str, list[Row]]:
    """Return rows grouped by one of their values, in their own order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row[key]), []).append(row)
    return groups
