"""Schemes and calibrators of `quantize` next to the float graph: score, size and speed.

Models are stored in `--work`: a first call, without `--out`, may run on a busy machine, and a last
one measures on an idle one. A scheme that a gate refuses is listed with the reason. Latency is
measured twice, in turns and in fresh processes: on texts at their natural length, and on texts of
128 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cells import Table, machine, megabytes, over, points, single_ms, times, titled
from benchmarks.harness import Noisy, Out, Run, Work, save_runs
from benchmarks.making import made_once
from benchmarks.runtimes import compared
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, ModelError, ParityError
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.config import SCHEMES
from quantize.integers import CALIBRATORS

VARIANTS: Mapping[str, dict[str, Any]] = {
    "dynamic": {"scheme": "dynamic"},
    **{f"static-{name}": {"scheme": "static", "calibrator": name} for name in CALIBRATORS},
    "mixed": {"scheme": "mixed", "base": "static", "sensitivity": "hessian-trace", "max_drop": 0.3},
    "four-bit-embeddings": {"scheme": "four-bit-embeddings"},
    "four-bit": {"scheme": "four-bit"},
    "qat": {"scheme": "qat"},
    "q-bert-4": {"scheme": "q-bert", "weight_bits": 4},
}
"""Name of a row -> the settings of its quantization."""


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of a torch classifier")],
    work: Work,
    out: Out = None,
    max_train: Annotated[int | None, typer.Option(help="texts that qat learns from")] = None,
    processes: Annotated[int, typer.Option(help="fresh ones that time every model")] = 3,
    noisy: Noisy = False,
) -> None:
    """Make every variant, and measure them together."""
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train} if max_train else {})
    training = {"epochs": 1, "learning_rate": 2e-5}
    graph = _made("export", {}, source, task, work / "float32")
    artifacts, refused = [graph], {}
    for name, settings in VARIANTS.items():
        trains = SCHEMES[settings["scheme"]].source == "torch"
        parent, more = (source, training) if trains else (graph, {})
        try:
            artifacts.append(_made("quantize", {**settings, **more}, parent, task, work / name))
        except (AccuracyError, ModelError, ParityError) as error:
            refused[name] = str(error).replace(f"{work}/", "").splitlines()[0]
            print(f"{name}: {error}")
    if out is not None:
        config = CompareConfig(processes=processes, noisy=noisy)
        save_runs([compared("quantization", artifacts, task, config, refused=refused)], out)


def _made(name: str, settings: dict[str, Any], source: Artifact, task: Task, out: Path) -> Artifact:
    stage = STAGES[name]
    make = partial(stage.make, [source], task)
    return made_once(out, stage.config.parse(settings), task.fingerprint(), source, make)


def table(runs: Sequence[Run]) -> Table:
    """Size, speed and points of each scheme, on each data set."""
    first = runs[0]
    by_name = [{row["name"]: row for row in run.rows} for run in runs]
    rows = []
    for name, row in by_name[0].items():
        if name != "float32":
            faster = times(over(first.rows[0]["latency"], row["latency"]))
            changes = [points(own.get(name, {}).get("change")) for own in by_name]
            rows.append([f"`{name}`", megabytes(row), faster, *changes])
    sets = [f"{titled(run).split(',')[0]}, points" for run in runs]
    floats = first.rows[0]
    layers, name = first.about.get("layers", 6), titled(first).split(",")[0]
    note = (
        f"{layers} layers; float32 has {megabytes(floats)} MB and takes {single_ms(floats)} ms for "
        f"one text. Times as fast: one text of {name}. Brackets are 95 % intervals. "
        f"{machine(first)}."
    )
    return Table(["Scheme", "MB", "Times as fast", *sets], rows, note)
