"""A compression in the documents: the whole table, and the few rows that the README shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.words import paragraph
from bertender.compression.records import CompressionReport
from bertender.compression.report import markdown_report, sentence
from bertender.core.processors import processor_name
from bertender.measure.comparison import Comparison
from bertender.report.cells import markdown_rows
from bertender.report.table import DISK, NAME, P50, RUNS_AS, SCORE, SPEEDUP, table_rows

__all__ = ["compress_block", "short_compress_block"]

COLUMNS = (NAME, RUNS_AS, DISK, SCORE, P50, SPEEDUP)


def compress_block(files: Mapping[str, Path]) -> str:
    """Return every candidate that was trained, the nearest of the others, and the sentence."""
    names, (report, _) = list(files), _read(files)
    raw = f"{_trained(report)} {_choice(report)} {_machine(report)} Raw: `{names[0]}`"
    return f"{markdown_report(report)}\n{paragraph(sentence(report))}\n{paragraph(raw)}"


def short_compress_block(files: Mapping[str, Path]) -> str:
    """Return the first and the last rows of the table: the teacher's, and the model's."""
    (report, table), raw = _read(files), " and ".join(f"`{name}`" for name in files)
    teacher, model = table.rows[0], table.rows[-1]
    rows = (teacher, model.model_copy(update={"name": "model"}))
    lines = markdown_rows(
        [column.heading(table.circumstances) for column in COLUMNS],
        table_rows(table.model_copy(update={"rows": rows, "constant": None}), COLUMNS),
        [column.numeric for column in COLUMNS],
    )
    words = f"{sentence(report)} {_machine(report)} Raw: {raw}"
    return "\n".join([*lines, "", paragraph(words)])


def _read(files: Mapping[str, Path]) -> tuple[CompressionReport, Comparison]:
    report, table = (path.read_text(encoding="utf-8") for path in files.values())
    return CompressionReport.model_validate_json(report), Comparison.model_validate_json(table)


def _trained(report: CompressionReport) -> str:
    trained = [each for each in report.candidates if each.rounds]
    last = max((done for each in trained for done in each.rounds), key=lambda done: done.share)
    return (
        f"{len(trained)} candidates were trained, for {report.minutes:.0f} minutes in all; the "
        f"last learned from {last.texts} labelled and {last.unlabelled} unlabelled texts."
    )


def _choice(report: CompressionReport) -> str:
    """Say how much better the model is on the texts to choose by than on the held-out ones."""
    chosen = report.best
    if chosen is None or chosen.choice is None or chosen.score is None:
        return ""
    return (
        f"The chosen one scores {chosen.choice:.3f} on the texts to choose by, which are drawn "
        f"from the training file, and {chosen.score.value:.3f} on the held-out ones."
    )


def _machine(report: CompressionReport) -> str:
    return f"Measured on {processor_name(report.environment)}, {report.environment.cores} cores."
