"""The comparison table: both renderings of the same columns, dashes, what the reader is told."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from bertender.comparison.records import CompareConfig, Comparison, ComparisonRow, Lengths
from bertender.comparison.table import (
    CHOICES,
    COLUMNS,
    DASH,
    DEFAULT_COLUMNS,
    Column,
    best_rows,
    columns_of,
    comparison_lines,
    conditions_lines,
    in_one_sentence,
    markdown_table,
    table_rows,
    terminal_table,
)
from bertender.core.machine import MachineLoad
from bertender.metrics.metric import AllScores, LabelScore, Score
from tests.comparison.rows import CONSTANT, STUDENT, TEACHER, compared, conditions

BY_WIDTH = [(True, 160), (False, 100)]
"""Every column in a wide terminal, those of a choice in one of 100."""


def rendered(comparison: Comparison, width: int, wide: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal_table(comparison, wide))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(comparison: Comparison) -> dict[str, list[str]]:
    """The Markdown table as name -> cells, read as a reader does."""
    markdown = markdown_table(comparison, wide=True)
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_the_rows_say_what_was_measured(comparison: Comparison) -> None:
    table = cells(comparison)
    assert table["teacher"] == [
        "torch float32", "22.7", "91.6", "0.893 [0.871, 0.912]", DASH,
        "9.95", "14.3", "17.9", "201", "158", "1.00x [1.00, 1.00]", DASH, DASH,
    ]  # fmt: skip
    student = table["student-3-layers-distilbert-int8"]
    assert student[0] == "onnx int8"
    assert student[4] == "-0.3 [-1.7, +1.0]"
    assert student[-3:] == ["6.3x [6.1, 6.5]", "1.66x [1.61, 1.70]", "passed 0.988"]


@pytest.mark.parametrize(
    ("wide", "column"),
    [
        *((True, column) for column in COLUMNS),
        *((False, column) for column in DEFAULT_COLUMNS),
    ],
    ids=lambda value: value.title if isinstance(value, Column) else str(value),
)
def test_each_column_is_in_both_renderings(
    comparison: Comparison, wide: bool, column: Column
) -> None:
    terminal, markdown = rendered(comparison, 160, wide), markdown_table(comparison, wide)
    if column not in columns_of(comparison, wide):
        assert column.optional and column.title not in markdown, "no row has a value"
        return
    assert column.title in terminal and column.title in markdown
    for row in comparison.rows:
        for part in column.cell(row):
            assert part in markdown and part in terminal


def test_every_default_column_is_one_of_all() -> None:
    titles = [column.title for column in COLUMNS]
    assert [column.title for column in DEFAULT_COLUMNS if column.title not in titles] == []
    assert len(DEFAULT_COLUMNS) < len(COLUMNS)


def test_headings_carry_metric_and_batch(comparison: Comparison) -> None:
    heading = cells(comparison)["Artifact"]
    assert "Score accuracy" in heading and "Batch 32, ms" in heading


@pytest.mark.parametrize(("wide", "width"), BY_WIDTH)
def test_no_cell_wraps_and_no_name_is_cut(comparison: Comparison, wide: bool, width: int) -> None:
    """A cell has as many lines as it has parts: a value, and its interval below."""
    text = rendered(comparison, width, wide)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    blocks = re.split(r"^ ─.*$", text, flags=re.M)[1:]
    columns = columns_of(comparison, wide)
    for cells, block in zip(table_rows(comparison, columns), blocks[1:], strict=False):
        lines = block.strip("\n").splitlines()
        assert len(lines) == max(map(len, cells)), block
        for place in range(len(lines)):
            parts = [cell[place] for cell in cells if place < len(cell)]
            assert lines[place].split() == " ".join(parts).split()
    assert STUDENT.name in text and CONSTANT.name in text


def test_what_is_missing_is_a_dash_and_never_0(comparison: Comparison) -> None:
    assert STUDENT.parity is not None
    no_agreement = STUDENT.parity.model_copy(update={"passed": False, "agreement": None})
    broken = STUDENT.model_copy(update={"name": "broken", "parity": no_agreement, "change": None})
    table = cells(compared(TEACHER, broken))
    assert table["broken"][-1] == f"FAILED {DASH}"
    assert table["broken"][4] == table["teacher"][4] == table["teacher"][-1] == DASH


def test_the_reader_is_told_the_conditions(comparison: Comparison) -> None:
    text = "\n".join(conditions_lines(comparison.circumstances))
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
    text = "\n".join(conditions_lines(conditions(environment=plain, lengths=lengths)))
    assert "without int8 dot products (no vector flags)" in text
    assert "5.00 words on average, 9 at most;" in text


def test_flags_that_the_kernel_denies_are_named(comparison: Comparison) -> None:
    changes = {"cpu_flags": ("avx2",), "denied_flags": ("amx_int8",)}
    denied = comparison.circumstances.environment.model_copy(update=changes)
    text = "\n".join(conditions_lines(conditions(environment=denied)))
    assert "(avx2, amx_int8 denied by the kernel)" in text


def test_a_report_needs_only_the_saved_json(comparison: Comparison) -> None:
    saved = Comparison.model_validate_json(comparison.model_dump_json())
    assert markdown_table(saved) == markdown_table(comparison)


def test_brackets_in_names_are_no_markup() -> None:
    odd = TEACHER.model_copy(update={"name": "[red]teacher[/red]"})
    text = rendered(compared(odd), 150)
    assert "[red]teacher[/red]" in text


SAID = {
    (): "no row records which texts",
    ("selection",): "validation texts, which no row learned from",
    ("dev",): "chosen on the same texts (select=0)",
    ("dev", "selection"): "for some rows",
}


@pytest.mark.parametrize("chosen_on", CHOICES)
def test_the_reader_is_told_what_chose_and_what_scored(chosen_on) -> None:
    lines = conditions_lines(conditions(chosen_on=chosen_on))
    (told,) = (line for line in lines if line.startswith("scored on the held-out texts"))
    assert SAID[chosen_on] in told


def test_the_row_that_needs_no_model_has_a_score_and_dashes(comparison: Comparison) -> None:
    row = cells(comparison)["always positive"]
    assert [cell for cell in row if cell != DASH] == ["0.509 [0.476, 0.542]"]
    text = "\n".join(comparison_lines(comparison))
    assert "`always positive` reads no text" in text


def test_a_table_without_a_float32_graph_has_no_column_for_it(comparison: Comparison) -> None:
    only = comparison.model_copy(update={"rows": (TEACHER,)})
    assert "Over ONNX" not in markdown_table(only, wide=True)
    assert "Over ONNX own float32" in markdown_table(comparison, wide=True)
    assert cells(comparison)["teacher"][-2] == DASH


def test_the_noise_floor_stands_below(comparison: Comparison) -> None:
    line = "noise floor, the same model (teacher) twice: 1.01x [0.97, 1.04]"
    assert line in comparison_lines(comparison) and f"- {line}" in markdown_table(comparison)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (MachineLoad(other_work=None, steal=None), "load unknown"),
        (MachineLoad(other_work=0.012, steal=0.0), "other work had 1.2% of the cores' time"),
    ],
)
def test_the_load_is_said(comparison: Comparison, load: MachineLoad, said: str) -> None:
    shown = comparison.model_copy(update={"circumstances": conditions(load=load)})
    text = markdown_table(shown)
    assert said in text and "NOISY" not in text and "~" not in text


@pytest.mark.parametrize("wide", [True, False])
def test_noisy_figures_are_marked_and_scores_are_not(comparison: Comparison, wide: bool) -> None:
    load = MachineLoad(other_work=0.2, steal=0.011)
    noisy = comparison.model_copy(update={"circumstances": conditions(load=load)})
    for text in (markdown_table(noisy, wide), rendered(noisy, 170, wide)):
        assert "~9.95" in text and "~6.3x" in text and "~1.66x" in text and "~1.01x" in text
        assert "~0.89" not in text and "~[" not in text and "~-" not in text
        assert "NOISY figures" in text
    assert "20.0% of the cores' time, and 1.1% was stolen" in markdown_table(noisy, wide)


def test_how_many_processes_there_were_is_said() -> None:
    assert "3 fresh processes of 4 rounds each, rows interleaved" in "\n".join(
        conditions_lines(conditions())
    )
    config = CompareConfig(processes=1, rounds=10)
    text = "\n".join(conditions_lines(conditions(config=config)))
    assert "; " in text and "\n10 rounds, rows interleaved" in text


def test_a_row_in_one_sentence() -> None:
    size = STUDENT.size.model_copy(update={"artifact_size_bytes": 8_612_345})
    single = STUDENT.latency.single.model_copy(update={"p50_ms": 0.7812})
    small = STUDENT.model_copy(
        update={
            "size": size,
            "latency": STUDENT.latency.model_copy(update={"single": single}),
            "score": STUDENT.score.model_copy(update={"value": 0.9049}),
        }
    )
    quiet = compared(TEACHER, small)
    assert in_one_sentence(quiet, small.name) == (
        f"{small.name} in place of teacher: 8.6 MB instead of 92, 0.78 ms a text instead of 10, "
        "90 % right instead of 89 %"
    )
    load = MachineLoad(other_work=0.9, steal=0.0)
    busy = quiet.model_copy(update={"circumstances": conditions(load=load)})
    assert "instead of 10 (timed on a busy machine), 90 %" in in_one_sentence(busy, small.name)
    matthews = small.model_copy(
        update={"score": small.score.model_copy(update={"metric": "matthews"})}
    )
    others = quiet.model_copy(update={"rows": (TEACHER, matthews)})
    assert in_one_sentence(others, small.name).endswith("matthews 0.90 instead of 0.89")
    nothing = TEACHER.score.model_copy(update={"value": 0.0, "undefined": "one label alone"})
    unscored = compared(TEACHER.model_copy(update={"score": nothing}), small)
    assert in_one_sentence(unscored, small.name).endswith("no accuracy to compare")


def with_scores(row: ComparisonRow, **of_score: object) -> ComparisonRow:
    score = row.score.model_copy(update=of_score)
    f1 = Score(metric="f1", value=0.8765, low=0.85, high=0.9, n=872)
    part = LabelScore(precision=0.5, recall=None, f1=0.25, actual=0, predicted=4)
    scores = AllScores(scores=(score, f1), by_label={"<b>negative": part})
    return row.model_copy(update={"score": score, "scores": scores})


def test_all_scores_are_below_the_table(comparison: Comparison) -> None:
    scored = comparison.model_copy(update={"rows": (with_scores(TEACHER), STUDENT)})
    assert Comparison.model_validate_json(scored.model_dump_json()) == scored
    narrow, wide = (markdown_table(scored, wide) for wide in (False, True))
    assert "| teacher | 0.893 [0.871, 0.912] | 0.876 [0.850, 0.900] |" in narrow
    assert "negative" not in narrow
    assert "| <b>negative | 0.500 | - | 0.250 | 0 | 4 |" in wide
    assert "All scores" not in markdown_table(comparison), "older files have none"


def test_a_score_that_says_nothing_is_a_dash_with_the_reason(comparison: Comparison) -> None:
    reason = "all predictions are 'negative'"
    none = with_scores(TEACHER, metric="matthews", value=0.0, undefined=reason)
    lines = markdown_table(comparison.model_copy(update={"rows": (none, STUDENT)}))
    assert f"- `teacher` has no matthews: {reason}" in lines
    assert "| teacher | - | 0.876 [0.850, 0.900] |" in lines


def test_a_row_without_a_score_is_on_no_front(comparison: Comparison) -> None:
    """Its value is 0, which would beat a negative score."""
    below = with_scores(TEACHER, metric="matthews", value=-0.1)
    none = with_scores(TEACHER, metric="matthews", value=0.0, undefined="constant")
    rows = (below, below, below, none)
    assert best_rows(rows) == [0, 1, 2]
    lines = comparison_lines(comparison.model_copy(update={"rows": rows[1:]}))
    assert not [line for line in lines if "Pareto" in line], "two can be compared by eye"


def test_numbers_that_fall_where_others_rise_are_said(comparison: Comparison) -> None:
    score = Score(metric="pearson", value=-0.5, low=-0.6, high=-0.4, n=872)
    row = TEACHER.model_copy(update={"score": score})
    lines = markdown_table(comparison.model_copy(update={"rows": (row, STUDENT)}))
    assert "`teacher` scores less than a guess" in lines
