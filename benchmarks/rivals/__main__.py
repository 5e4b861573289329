"""Measures one model in other libraries and in bertender, in process: speed and predictions.

    python -m benchmarks.rivals TORCH_ARTIFACT ONNX_ARTIFACT ... --out FILE.json [--only NAME,...]

Each row of RIVALS opens every artifact of the kind that it reads, in a process of its own, and of
its own Python environment where it has requirements (`--environments`: made once, and reused).
Texts, or pairs of them, go in and probabilities come out, tokenisation included, one at a time and
in batches, with equal threads; all rows take turns. One that cannot be installed or cannot open the
model is a row with the reason. `FILE.json` is written after each repetition; the same command
continues it. With `--servers-out FILE`, the last artifact is then measured behind servers, ours and
others, by `benchmarks.serving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common.options import names_in
from benchmarks.common.pinning import NOT_PINNED, PINNED
from benchmarks.common.resuming import continued
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.rivals.figures import RivalFigures
from benchmarks.rivals.libraries import RIVALS
from benchmarks.rivals.measuring import Contest, entries_of
from benchmarks.rivals.records import MeasuredModel, RivalBenchmark
from benchmarks.serving.measuring import begin, show_left_out
from benchmarks.serving.records import ServingConfig
from bertender.comparison.records import LatencyConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.core.files import cache_directory, check_savable
from bertender.core.machine import environment
from bertender.core.machine_load import check_load_now
from bertender.core.progress import show_progress
from bertender.models.predictor import problem_of
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer

__all__ = ["run"]


def run(
    artifacts: Annotated[list[Path], typer.Argument(help="of one model: torch, onnx, int8")],
    out: Annotated[Path, typer.Option(help="the JSON to write, or to go on with")],
    only: Annotated[str, typer.Option(help="rivals by commas; all by default")] = "",
    environments: Annotated[
        Path | None,
        typer.Option(help="folder of the rivals' environments; the cache folder's"),
    ] = None,
    threads: Annotated[int, typer.Option(help="of every row; 0: every core")] = 0,
    rounds: Annotated[int, typer.Option(help="of each repetition")] = 4,
    processes: Annotated[int, typer.Option(help="repetitions in fresh processes")] = 3,
    servers_out: Annotated[
        Path | None, typer.Option(help="the JSON of the last artifact behind servers, too")
    ] = None,
    pin: Annotated[bool, typer.Option(help="servers on core 0, their clients on core 1")] = True,
    noisy: NoisyFlag = False,
) -> None:
    """Measure every rival that opens a model, and write the JSON."""
    show_progress()
    check_noisy_out(noisy, out)
    check_noisy_out(noisy, servers_out)
    models = [Artifact.load(path) for path in artifacts]
    task = recorded_task(models[0], {})
    _check(models, task)
    servers = None
    if servers_out is not None:
        _check_servers(servers_out, out)
        texts = [example[0] for example in task.dev.examples]
        serving = ServingConfig(pins=PINNED if pin else NOT_PINNED, noisy=noisy)
        servers = begin(models[-1], texts, serving, servers_out)
    config = LatencyConfig(rounds=rounds, processes=processes, threads=threads, noisy=noisy)
    benchmark = continued(_begun(models, task, _chosen(only, task), config), out, "results")
    contest = Contest(
        entries_of(benchmark.rivals, models),
        task,
        benchmark,
        environments or cache_directory() / "rivals",
    )
    if not noisy:
        check_load_now()
    results = benchmark.results or contest.predictions()
    for name, reason in results.absent.items():
        typer.echo(f"{name} is left out: {reason}")
    for row in results.rows:
        typer.echo(
            f"{row.name}: accuracy {row.score.value:.4f}, agreement {row.agreement:.4f}, largest "
            f"difference of a probability {row.max_probability_difference:.1e}"
        )
    for timed in contest.timed(results):
        benchmark = benchmark.model_copy(update={"results": timed})
        save_benchmark(benchmark, out)
        typer.echo(f"repetition {len(timed.repetitions)} of {processes}")
    _show(benchmark)
    if servers is not None:
        show_left_out(servers.run())


def _check_servers(servers_out: Path, out: Path) -> None:
    """Raise ConfigError where the file cannot be written, or is that of the rivals."""
    check_savable("--servers-out", servers_out, "JSON")
    if servers_out.resolve() == out.resolve():
        raise ConfigError(f"--servers-out {servers_out} is --out, too. Give it another name.")


def _check(models: Sequence[Artifact], task: Task) -> None:
    """Check that artifacts give one label to a text or a pair, and have the same labels.

    Raises:
        ModelError: they are not.
    """
    for each in models:
        record = each.card.task
        if problem_of(each) is not SINGLE_LABEL:
            raise ModelError(
                f"{each.path} is of {record.problem_type!r}; rivals are measured on one label of a "
                "text or of a pair. Give another model."
            )
        if len(record.text_columns) != len(task.text_columns):
            raise ModelError(
                f"{each.path} reads {len(record.text_columns)} text columns, and {models[0].path} "
                f"{len(task.text_columns)}. Give artifacts of one model."
            )
        if record.labels != task.labels:
            raise ModelError(
                f"{each.path} has the labels {record.labels}, and {models[0].path} has "
                f"{task.labels}. Give artifacts of one model."
            )


def _chosen(only: str, task: Task) -> tuple[str, ...]:
    """Return the rivals that are asked for, or all of the task's, in the order of the table.

    Raises:
        UnknownNameError: a name is not in RIVALS.
        ConfigError: none is asked for, or one that cannot classify the task's texts.
    """
    able = [name for name, row in RIVALS.items() if row.single_texts or _of_pairs(task)]
    asked = names_in("--only", only, able) or able
    for name in asked:
        RIVALS[name]
        if name not in able:
            raise ConfigError(
                f"--only {name} classifies pairs of texts, and {task.name} has single ones. Give a "
                "model of pairs, or leave it out."
            )
    return tuple(name for name in RIVALS if name in asked)


def _of_pairs(task: Task) -> bool:
    return len(task.text_columns) > 1


def _begun(
    models: Sequence[Artifact], task: Task, rivals: tuple[str, ...], config: LatencyConfig
) -> RivalBenchmark:
    """Return a benchmark without results."""
    longest = SINGLE_LABEL.encoder(load_tokenizer(models[0].path)).max_length
    return RivalBenchmark(
        task=task.name,
        n=len(task.dev),
        of_pairs=_of_pairs(task),
        max_length=longest,
        models=tuple(
            MeasuredModel(
                name=each.name,
                digest=each.digest,
                kind=each.card.kind,
                precision=each.card.precision,
            )
            for each in models
        ),
        rivals=rivals,
        config=config,
        environment=environment(),
    )


def _show(benchmark: RivalBenchmark) -> None:
    for name, latency in RivalFigures(benchmark).latency.items():
        typer.echo(
            f"{name}: {latency.single.p50_ms:.2f} ms one at a time, "
            f"{latency.texts_per_second:.1f} a second in batches"
        )


if __name__ == "__main__":
    typer.run(run)
