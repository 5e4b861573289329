"""The table of pre-training objectives after fine-tuning, from its raw result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.methods.table import CONSTANT
from benchmarks.objectives.measuring import ObjectivesBenchmark, PretrainedEncoder, ScoredTask
from benchmarks.objectives.reading import (
    REFERENCE,
    Gains,
    classifiers_of,
    constant_score,
    gains_of,
    objectives_reading,
)
from bertender.core.processors import processor_name
from bertender.report.cells import DASH, markdown_rows

__all__ = ["objectives_block"]


def objectives_block(file: str, path: Path) -> str:
    """Return the table, its conditions and its file, as Markdown."""
    result = ObjectivesBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    titles = ["Objective", "Passages", "Seconds", "Parameters, M"]
    titles += [f"{each.name}: {each.metric}, points over `{REFERENCE}`" for each in result.tasks]
    gains = {task.name: gains_of(task, result) for task in result.tasks}
    rows = [*(_cells(each, result.tasks, gains) for each in result.encoders), _constant(result)]
    heads, *cells = ([(cell,) for cell in row] for row in (titles, *rows))
    table = "\n".join(markdown_rows(heads, cells, [0 < n < 4 for n in range(len(titles))]))
    words = f"{objectives_reading(result, gains)}\n\n{_conditions(result)}"
    return f"{table}\n\n{words}\n\nRaw: `{file}`\n"


def _cells(encoder: PretrainedEncoder, tasks: Sequence[ScoredTask], gains: Gains) -> list[str]:
    return [
        f"`{encoder.objective}`",
        f"{encoder.passages:,}",
        f"{encoder.processor_s:.0f}",
        f"{encoder.parameters / 1e6:.1f}",
        *(_scored(encoder, task, gains) for task in tasks),
    ]


def _constant(result: ObjectivesBenchmark) -> list[str]:
    return [CONSTANT, *[DASH] * 3, *(f"{constant_score(each).value:.3f}" for each in result.tasks)]


def _scored(encoder: PretrainedEncoder, task: ScoredTask, gains: Gains) -> str:
    own = classifiers_of(encoder, task)
    if not own:
        return DASH
    mean = f"{statistics.mean([each.score.value for each in own]):.3f}"
    gain = gains[task.name].get(encoder.objective)
    return mean if gain is None else f"{mean}, {points(gain)}"


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
