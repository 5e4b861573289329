"""The table of a tagging benchmark, as Markdown: means over seeds, and what each loss gains."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.points import points
from benchmarks.tagging.measuring import CONTROL, TaggerResult, TaggingBenchmark
from bertender.metrics.entities import Counts, entity_change
from bertender.metrics.records import Change

__all__ = ["tagging_block", "tagging_gain"]


def tagging_block(file: str, path: Path) -> str:
    """Return the table of the benchmark at `path`, what it was measured under, and its file."""
    benchmark = TaggingBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    by_loss: dict[str, list[TaggerResult]] = {}
    for student in benchmark.students:
        by_loss.setdefault(student.loss, []).append(student)
    ordered = sorted(by_loss.values(), key=_mean, reverse=True)
    head = (
        "| Tagger | Params M | MB | Entity F1 | Each seed | Points over hard, 95 % interval |\n"
        "| --- | ---: | ---: | ---: | --- | ---: |\n"
    )
    rows = [
        _row("teacher", [benchmark.teacher], "-"),
        *(
            _row(f"`minibert`, {students[0].loss}", students, _gain(students, by_loss, benchmark))
            for students in ordered
        ),
    ]
    return head + "\n".join(rows) + f"\n\n{_conditions(benchmark)}\n\nRaw: `{file}`\n"


def _row(name: str, taggers: Sequence[TaggerResult], gain: str) -> str:
    scores = ", ".join(f"{tagger.score.value:.3f}" for tagger in taggers)
    millions, megabytes = taggers[0].parameters / 1e6, taggers[0].size_bytes / 1e6
    return (
        f"| {name} | {millions:.1f} | {megabytes:.0f} | {_mean(taggers):.3f} | {scores} | {gain} |"
    )


def _gain(
    students: Sequence[TaggerResult],
    by_loss: dict[str, list[TaggerResult]],
    benchmark: TaggingBenchmark,
) -> str:
    if students[0].loss == CONTROL:
        return "-"
    return points(tagging_gain(benchmark, by_loss[CONTROL], students))


def tagging_gain(
    benchmark: TaggingBenchmark, references: Sequence[TaggerResult], ours: Sequence[TaggerResult]
) -> Change:
    """Return what taggers gain over others, on average."""
    counts = [[_counts(tagger, benchmark) for tagger in each] for each in (references, ours)]
    return entity_change(*counts)


def _counts(tagger: TaggerResult, benchmark: TaggingBenchmark) -> Counts:
    columns = (tagger.found, benchmark.entities, tagger.answered)
    return np.array(columns, dtype=np.float64).T


def _mean(taggers: Sequence[TaggerResult]) -> float:
    return statistics.mean(tagger.score.value for tagger in taggers)


def _conditions(result: TaggingBenchmark) -> str:
    budget = result.budget
    seen = budget.max_train or result.train_sentences
    return (
        f"{result.task}, {result.teacher.score.n} test sentences. The teacher, {result.encoder}, "
        f"learned from all {result.train_sentences} training sentences, "
        f"{_epochs(budget.teacher_epochs)} at learning rate {budget.teacher_learning_rate:g}. "
        f"Every student: {seen} of them, {_epochs(budget.epochs)}, learning rate "
        f"{budget.learning_rate:g}, batches of {budget.batch_size}; no pre-training of its layers."
    )


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count != 1)}"
