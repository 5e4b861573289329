"""Schemes and calibrators of `quantize` next to the float graph: score, size and speed.

Models are stored in `--work`: a first call (`--no-measure`) may run on a busy machine, and a last
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

from benchmarks.cells import Table, machine, over, points, times, titled, two
from benchmarks.harness import Noisy, Out, Run, Work, save_runs
from benchmarks.making import made_once
from benchmarks.models import comparison_run
from benchmarks.runtimes import long_texts, with_long
from bertender.comparison.compare import compare, timed_models
from bertender.comparison.latency import measure_models
from bertender.comparison.records import CompareConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import AccuracyError, ModelError, ParityError
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from quantize.config import SCHEMES

LONG_TEXTS = 20
"""Timed one by one in a round."""
VARIANTS: Mapping[str, dict[str, Any]] = {
    "dynamic": {"scheme": "dynamic"},
    **{
        f"static-{calibrator}": {"scheme": "static", "calibrator": calibrator}
        for calibrator in ("minmax", "percentile", "entropy", "mse")
    },
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
    epochs: Annotated[int, typer.Option(help="of qat")] = 1,
    measure: Annotated[bool, typer.Option(help="or only make the models")] = True,
    processes: Annotated[int, typer.Option(help="fresh ones that time every model")] = 3,
    noisy: Noisy = False,
) -> None:
    """Make every variant, and measure them together."""
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train} if max_train else {})
    training = {"epochs": epochs, "learning_rate": 2e-5}
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
    if not measure:
        return
    config = CompareConfig(processes=processes, noisy=noisy)
    comparison = comparison_run("quantization", compare(artifacts, task, config), refused=refused)
    texts, tokens = long_texts(graph, task.dev.examples, 2 * LONG_TEXTS)
    few = config.model_copy(update={"single_texts": LONG_TEXTS})
    models = timed_models(artifacts, config.runtime)
    long = measure_models(models, texts, few, max_length=tokens)
    save_runs([with_long(comparison, [row.model_dump(mode="json") for row in long.rows])], out)


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
            megabytes = two(row["size"]["artifact_size_bytes"] / 1e6)
            faster = times(over(first.rows[0]["latency"], row["latency"]))
            changes = [points(own.get(name, {}).get("change")) for own in by_name]
            rows.append([f"`{name}`", megabytes, faster, *changes])
    sets = [f"{titled(run).split(',')[0]}, points" for run in runs]
    floats = first.rows[0]
    note = (
        f"6 layers; float32 has {two(floats['size']['artifact_size_bytes'] / 1e6)} MB and "
        f"takes {two(floats['latency']['single']['p50_ms'])} ms for one text. Times as fast: one "
        f"text of {titled(first).split(',')[0]}. Brackets are 95 % intervals. {machine(first)}."
    )
    return Table(["Scheme", "MB", "Times as fast", *sets], rows, note)
