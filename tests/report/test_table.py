"""The comparison table: both renderings of the same columns, dashes, what the reader is told."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bertender.measure.comparison import Comparison, Lengths
from bertender.report.cells import DASH
from bertender.report.table import (
    CHOICES,
    COLUMNS,
    circumstances_lines,
    markdown_table,
    terminal_table,
)
from tests.report.conftest import STUDENT, TEACHER, circumstances


def rendered(comparison: Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal_table(comparison))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(comparison: Comparison) -> dict[str, list[str]]:
    """The Markdown table as name -> cells, read as a reader does."""
    lines = [line for line in markdown_table(comparison).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_the_rows_say_what_was_measured(comparison: Comparison) -> None:
    table = cells(comparison)
    assert table["teacher"] == [
        "torch float32", "22.7", "91.6", "0.893 [0.871, 0.912]", DASH,
        "9.95", "14.3", "17.9", "201", "158", "1.00x [1.00, 1.00]", DASH,
    ]  # fmt: skip
    student = table["student-3-layers-distilbert-int8"]
    assert student[0] == "onnx int8"
    assert student[4] == "-0.3 [-1.7, +1.0]"
    assert student[-2:] == ["6.3x [6.1, 6.5]", "passed 0.988"]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.title)
def test_each_column_is_in_both_renderings(comparison: Comparison, column) -> None:
    terminal, markdown = rendered(comparison, 150), markdown_table(comparison)
    assert column.title in terminal and column.title in markdown
    for row in comparison.rows:
        for part in column.cell(row):
            assert part in markdown
            assert part[: len("student-3-layers")] in terminal


def test_headings_carry_metric_and_batch(comparison: Comparison) -> None:
    heading = cells(comparison)["Artifact"]
    assert "Score accuracy" in heading and "Batch 32, ms" in heading


@pytest.mark.parametrize("width", [120, 150])
def test_the_terminal_table_fits_and_loses_no_letter(comparison: Comparison, width: int) -> None:
    text = rendered(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    lines = text.splitlines()
    (heading,) = [line for line in lines if "Runs as" in line]
    names = "".join(line[: heading.index("Runs as")].strip() for line in lines)
    assert STUDENT.name in names
    assert "[0.871, 0.912]" in text and "passed" in text and "0.988" in text


def test_what_is_missing_is_a_dash_and_never_0(comparison: Comparison) -> None:
    assert STUDENT.parity is not None
    no_agreement = STUDENT.parity.model_copy(update={"passed": False, "agreement": None})
    broken = STUDENT.model_copy(update={"name": "broken", "parity": no_agreement, "change": None})
    table = cells(Comparison(circumstances=circumstances(), rows=(TEACHER, broken)))
    assert table["broken"][-1] == f"FAILED {DASH}"
    assert table["broken"][4] == table["teacher"][4] == table["teacher"][-1] == DASH


def test_the_reader_is_told_the_circumstances(comparison: Comparison) -> None:
    text = "\n".join(circumstances_lines(comparison.circumstances))
    for fact in (
        "sst2", "accuracy", "n = 872", "95 %", "Some CPU 9000", "with int8 dot products",
        "avx2 avx512_vnni", "2 threads", "19.6 words on average, 47 at most", "25.2 and 66 tokens",
        "torch 2.13.0", "onnxruntime 1.31.1", f"transformers {DASH}", "seed 4", "2030-01-02",
        "tokenisation included", "interleaved",
    ):  # fmt: skip
        assert fact in text, fact
        assert fact in markdown_table(comparison)


def test_a_cpu_without_int8_and_texts_without_tokens_are_said_so(comparison: Comparison) -> None:
    plain = comparison.circumstances.environment.model_copy(update={"cpu_flags": ()})
    lengths = Lengths(mean_words=5.0, max_words=9, mean_tokens=None, max_tokens=None)
    text = "\n".join(circumstances_lines(circumstances(environment=plain, lengths=lengths)))
    assert "without int8 dot products (no vector flags)" in text
    assert "5.00 words on average, 9 at most;" in text


def test_a_report_needs_only_the_saved_json(comparison: Comparison) -> None:
    saved = Comparison.model_validate_json(comparison.model_dump_json())
    assert markdown_table(saved) == markdown_table(comparison)


def test_brackets_in_names_are_no_markup() -> None:
    odd = TEACHER.model_copy(update={"name": "[red]teacher[/red]"})
    text = rendered(Comparison(circumstances=circumstances(), rows=(odd,)), 150)
    assert "[red]teacher[/red]" in text


SAID = {
    ("selection",): "texts of the training file that no row learned from",
    ("dev",): "chosen on the same texts (select=0)",
    ("dev", "selection"): "for some rows",
}


@pytest.mark.parametrize("chosen_on", [None, *CHOICES])
def test_the_reader_is_told_what_chose_and_what_scored(chosen_on) -> None:
    lines = circumstances_lines(circumstances(chosen_on=chosen_on))
    told = [line for line in lines if line.startswith("scored on the held-out texts")]
    assert len(told) == (chosen_on is not None), "older files do not say"
    assert all(SAID[chosen_on] in line for line in told)
