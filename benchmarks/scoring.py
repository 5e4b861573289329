"""Rate and memory of `score` by the number of texts, beside the predictor in a plain loop.

The loop has texts sorted by length before it begins, encodes a batch and runs it. Memory is the
peak of the command's process, as the kernel counts it.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.cells import Table, machine, task_title, two
from benchmarks.harness import (
    Noisy,
    Out,
    Row,
    Run,
    ServedArtifact,
    recorded,
    save_runs,
    used_by,
    watched,
)
from benchmarks.models import TITLES
from bertender.comparison.accuracy import text_lengths
from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier, open_classifier
from bertender.scoring.scorer import TOKENS_PER_BATCH
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from bertender.text.batch import Example, length_buckets

LOOP_TEXTS = 10_000


def run(
    artifact: ServedArtifact,
    out: Out = None,
    task: Annotated[str, typer.Option(help="a name from `bertender tasks`")] = "docs",
    counts: Annotated[str, typer.Option(help="numbers of texts, by commas")] = "10000,1000000",
    rounds: Annotated[int, typer.Option(help="of the loop and the command, in turns")] = 3,
    noisy: Noisy = False,
) -> None:
    """Score texts of a task, repeated as often as it takes."""
    examples = load_task(TaskConfig.parse({"task": task})).train.examples
    model = open_classifier(Artifact.load(artifact))
    rows: list[Row] = []
    with TemporaryDirectory() as name, watched(noisy, out) as meter:
        folder = Path(name)
        for count in map(int, counts.split(",")):
            source = folder / f"{count}.csv"
            with source.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["text"])
                writer.writerows(some(examples, count))
            for number in range(rounds):
                loop = loop_rate(model, [*some(examples, min(count, LOOP_TEXTS))])
                own = scored(artifact, source, folder / f"{count}-{number}")
                rows.append({"texts": count, "round": number, "loop_texts_per_s": loop, **own})
                print(json.dumps(rows[-1]), file=sys.stderr)
    about = {"task": task, "model": model.name, "omp_threads": os.environ.get("OMP_NUM_THREADS")}
    save_runs([recorded("scoring", rows, meter.load, **about)], out)


def some(examples: Sequence[Example], count: int) -> Iterator[Example]:
    """Return so many examples, the same again and again."""
    return islice(chain.from_iterable(repeat(examples)), count)


def loop_rate(model: Classifier, examples: Sequence[Example]) -> float:
    """Return texts a second of the predictor over batches that are sorted already."""
    buckets = length_buckets(text_lengths(model.encode, examples), TOKENS_PER_BATCH)
    batches = [[examples[row] for row in bucket] for bucket in buckets]
    started = time.perf_counter()
    for batch in batches:
        model.logits(batch)
    return len(examples) / (time.perf_counter() - started)


def scored(artifact: Path, source: Path, out: Path) -> Row:
    """Run `score` in a process of its own; return its rate and its memory.

    Raises:
        MeasuredCommandError: it failed.
    """
    words = ("-q", "score", artifact, source, "--text-column", "text", "--out", out, "--json")
    used = used_by(*map(str, words))
    done: dict[str, Any] = json.loads(used.output.splitlines()[-1])
    return {"texts_per_s": done["texts_per_s"], "peak_bytes": used.peak_bytes}


def table(runs: Sequence[Run]) -> Table:
    """Rate, its share of the loop's, and peak memory, by model and number of texts."""
    cells = []
    for result in runs:
        model = TITLES.get(result.about["model"], result.about["model"])
        for count in dict.fromkeys(row["texts"] for row in result.rows):
            own = [row for row in result.rows if row["texts"] == count]
            rate, loop = (
                sum(row[name] for row in own) / len(own)
                for name in ("texts_per_s", "loop_texts_per_s")
            )
            peak = max(row["peak_bytes"] for row in own)
            cells.append([model, f"{count:,}", two(rate), f"{rate / loop:.2f}", two(peak / 1e6)])
    note = f"Texts of {task_title(runs[0].about['task'])}, again and again. {machine(runs[0])}."
    return Table(["Model", "Texts", "Texts/s", "Of a plain loop", "Memory, MB"], cells, note)
