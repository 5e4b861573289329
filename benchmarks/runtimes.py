"""The same ONNX files in every runtime: score, and time at three shapes, on this machine.

The first file is the float32 graph; the others are quantized from it, or hold it in float16 for
GPUs. A file has a row for each runtime that suits it, with equal threads. Each runtime has a
process of its own, and all rows take turns. Single texts and batches of 32 have their natural
length; then texts of LONG_TOKENS tokens are timed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Annotated, Any

import typer

from benchmarks.cells import Table, machine, over, points, task_title, times, two
from benchmarks.harness import Noisy, OnnxArtifacts, Out, Row, Run, Threads, loaded, save_runs
from benchmarks.models import comparison_run
from bertender.comparison.accuracy import text_lengths
from bertender.comparison.compare import compare
from bertender.comparison.latency import measure_models
from bertender.comparison.records import CompareConfig
from bertender.comparison.rows import timed_models
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.batch import Example, Tokenize
from bertender.text.tokenizer import load_tokenizer, longest_input

LONG_TOKENS, LONG_TEXTS = 128, 50
"""Tokens of a long text, and how many are drawn from in each round."""


def run(
    artifacts: OnnxArtifacts,
    out: Out = None,
    runtime: Annotated[str, typer.Option(help="by commas")] = "onnxruntime,openvino",
    threads: Threads = 0,
    processes: Annotated[int, typer.Option(min=1, help="fresh ones, each with all rows")] = 3,
    noisy: Noisy = False,
) -> None:
    """Score and time the same artifacts in several runtimes."""
    opened = loaded(artifacts)
    task, first = recorded_task(opened[0], {}), opened[0]
    settings = {"runtime": runtime, "threads": threads, "processes": processes, "noisy": noisy}
    config = CompareConfig.parse(settings)
    graph = first.card.findings.graph
    if graph is None or config.runtime[0] != DEFAULT_RUNTIME:
        raise ConfigError(
            f"give what `bertender export` wrote first, and {DEFAULT_RUNTIME} as first --runtime: "
            "the others are compared with them."
        )
    save_runs([compared("runtimes", opened, task, config, layers=graph.layers)], out)


def compared(
    subject: str, artifacts: Sequence[Artifact], task: Task, config: CompareConfig, **about: Any
) -> Run:
    """Return the record of a comparison whose rows have their latencies of long texts, too."""
    texts, tokens = long_texts(artifacts[0], task.dev.examples, LONG_TEXTS)
    run = comparison_run(subject, compare(artifacts, task, config), **about)
    models = timed_models(artifacts, config.runtime)
    alone = config.model_copy(update={"batch_size": 1})
    latencies = measure_models(models, texts, alone, max_length=tokens).rows
    rows = [
        {**row, "long": long.model_dump(mode="json")}
        for row, long in zip(run.rows, latencies, strict=True)
    ]
    return run.model_copy(update={"rows": rows})


def long_texts(
    artifact: Artifact, examples: Sequence[Example], count: int
) -> tuple[list[Example], int]:
    """Return `count` texts that fill LONG_TOKENS or the model's input, and their tokens.

    Each is made of several texts, taken in turns and joined until the tokenizer cuts it off.

    Raises:
        DataError: there are no words to make them of.
    """
    tokenizer = load_tokenizer(artifact.path)
    tokens = min(LONG_TOKENS, longest_input(tokenizer))
    encode = Tokenize(tokenizer, tokens)
    full = text_lengths(encode, [tuple(" ".join(["a"] * LONG_TOKENS) for _ in examples[0])])[0]
    made: list[Example] = []
    words = ""
    for first, *others in islice(cycle(examples), count * full):
        words = f"{words} {first}".strip()
        if text_lengths(encode, [(words, *others)])[0] == full:
            made.append((words, *others))
            words = ""
        if len(made) == count:
            return made, tokens
    raise DataError(
        f"{len(made)} texts of {full} tokens could be made, and {count} are required: the task's "
        "texts are empty. Give a task with words in its texts."
    )


def table(runs: Sequence[Run]) -> Table:
    """Times as fast as the float graph in ONNX Runtime, on each machine."""
    several = len({machine(run) for run in runs}) > 1
    rows = [
        [*([machine(run).removesuffix(", 2 threads")] if several else []), *_cells(run, row)]
        for run in runs
        for row in shown_rows(run)
    ]
    headings = ["Model and engine", "One text", "128 tokens", "32 mixed", "Points"]
    note = (
        f"{task_title(runs[0].about['task'])}, {runs[0].about['layers']} layers; milliseconds of "
        "the first row, and how many times as fast as it the others are, with 95 % intervals."
        + ("" if several else f" {machine(runs[0])}.")
    )
    return Table([*(["CPU"] if several else []), *headings], rows, note)


def shown_rows(run: Run) -> list[Row]:
    """Return the rows that somebody would choose.

    OpenVINO is slow with dynamic scales and no faster than ONNX Runtime with floats, its bfloat16
    changes little beside 8 bits, and scales by `minmax` are for it.
    """
    return [row for row in run.rows if row is run.rows[0] or _is_chosen(row)]


def _is_chosen(row: Row) -> bool:
    if row["runtime"] == DEFAULT_RUNTIME:
        return "minmax" not in row["name"]
    if row["runtime"] == "openvino":
        return "static" in row["name"]
    return bool(row["precision"] != "int8")


def title(row: Row) -> str:
    """Return the title of a row: its precision, or the scales of its 8 bits, and the engine."""
    name, _, engine = str(row["name"]).partition(" in ")
    if row["precision"] != "int8":
        return f"{row['precision']} in {engine}"
    scales = "static" if "static" in name else "dynamic"
    bits = f", {name[-6]} bits" if name.endswith("-bits") else ""
    return f"{scales}{', minmax' if 'minmax' in name else ''}{bits} in {engine}"


def _cells(run: Run, row: Row) -> list[str]:
    first = run.rows[0]
    shapes = (("latency", "single"), ("long", "single"), ("latency", "batch"))
    if row is first:
        return [title(row), *(f"{two(row[part][key]['p50_ms'])} ms" for part, key in shapes), "-"]
    faster = (times(over(first[part], row[part], f"{key}_ms")) for part, key in shapes)
    return [title(row), *faster, points(row["change"])]
