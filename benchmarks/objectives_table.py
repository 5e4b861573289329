"""The table of pre-training objectives after fine-tuning, from its raw result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.objectives import FineTuned, ObjectivesBenchmark, PretrainedEncoder, ScoredTask
from benchmarks.points import gained, points
from bertender.core.processors import processor_name
from bertender.metrics.records import LabelSet
from bertender.report.cells import DASH, markdown_rows

__all__ = ["REFERENCE", "objectives_block"]

REFERENCE = "mlm"
"""The objective that others are compared with."""


def objectives_block(file: str, path: Path) -> str:
    """Return the table, its conditions and its file, as Markdown."""
    result = ObjectivesBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = ["Objective", "Passages", "Seconds", "Parameters, M"]
    titles += [f"{each.name}: {each.metric}, points over `{REFERENCE}`" for each in result.tasks]
    rows = [_cells(each, result) for each in result.encoders]
    heads, *cells = ([(cell,) for cell in row] for row in (titles, *rows))
    table = "\n".join(markdown_rows(heads, cells, [0 < n < 4 for n in range(len(titles))]))
    return f"{table}\n\n{_conditions(result)}\n\nRaw: `{file}`\n"


def _cells(encoder: PretrainedEncoder, result: ObjectivesBenchmark) -> list[str]:
    return [
        f"`{encoder.objective}`",
        f"{encoder.passages:,}",
        f"{encoder.processor_s:.0f}",
        f"{encoder.parameters / 1e6:.1f}",
        *(_scored(encoder, task, result) for task in result.tasks),
    ]


def _scored(encoder: PretrainedEncoder, task: ScoredTask, result: ObjectivesBenchmark) -> str:
    own = _of(encoder, task)
    if not own:
        return DASH
    mean = f"{statistics.mean([each.score.value for each in own]):.3f}"
    references = [each for each in result.encoders if each.objective == REFERENCE]
    if encoder.objective == REFERENCE or not references:
        return mean
    labels = LabelSet(count=len(task.label_names), names=task.label_names)
    reference = _of(references[0], task)
    return f"{mean}, {points(gained(task.metric, task.labels, reference, own, label_set=labels))}"


def _of(encoder: PretrainedEncoder, task: ScoredTask) -> Sequence[FineTuned]:
    return [each for each in encoder.classifiers if each.task == task.name]


def _conditions(result: ObjectivesBenchmark) -> str:
    shape, finetuning = result.shape, result.finetuning
    seeds = len({each.seed for row in result.encoders for each in row.classifiers})
    tasks = ", ".join(
        f"{each.name} {each.train_texts:,} training texts, {len(each.labels)} held out"
        for each in result.tasks
    )
    return (
        f"Encoders of {shape['layers']} layers x {shape['hidden_size']}, pre-trained on the first "
        f"passages of {result.corpus}: as many as {result.budget_s:.0f} s of processor time hold, "
        f"vocabulary and rows included; of `untrained`, few; {tasks}, "
        f"{finetuning['epochs']} epochs at "
        f"{finetuning['learning_rate']:g}, means of {seeds} seeds of the fine-tuning. Intervals "
        "of 95 % hold texts and those seeds; each encoder was pre-trained once. "
        f"{processor_name(result.environment)}."
    )
