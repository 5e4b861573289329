"""The comparison as an HTML page: all of the table, nothing unescaped, heads of pruned rows."""

from __future__ import annotations

import re

from markupsafe import escape

from bertender.comparison.records import Comparison, PrunedHeads
from bertender.comparison.table import COLUMNS, comparison_lines, heat_map, html_report
from bertender.core.machine import MachineLoad
from tests.comparison.rows import STUDENT, TEACHER, conditions

PRUNED = PrunedHeads(
    layers=(0, 2), importance=((0.25, 1.0, 0.0), (0.5, 0.125, 0.75)), kept=((1,), (0, 2))
)


def with_rows(**changes: object) -> Comparison:
    student = STUDENT.model_copy(update=changes)
    return Comparison(circumstances=conditions(), rows=(TEACHER, student))


def test_a_head_is_as_dark_as_it_was_worth_and_says_whether_it_is_there() -> None:
    (first, upper), (third, lower) = heat_map(PRUNED)
    assert (first, third) == (0, 2), "by the numbers of the layers before some were dropped"
    assert [cell.remains for cell in (*upper, *lower)] == [False, True, False, True, False, True]
    assert [cell.colour for cell in upper] == [f"hsl(210 70% {light}%)" for light in (82, 45, 95)]
    assert upper[1].words == "layer 0, head 1: 1, remains"
    assert lower[1].words == "layer 2, head 1: 0.125, cut"
    nothing = PRUNED.model_copy(update={"importance": ((0.0,) * 3,) * 2})
    assert {cell.colour for _, row in heat_map(nothing) for cell in row} == {"hsl(210 70% 95%)"}


def test_the_page_holds_the_whole_table(comparison: Comparison) -> None:
    page = html_report(comparison)
    for line in comparison_lines(comparison):
        assert str(escape(line)) in page
    for row in comparison.rows:
        for column in COLUMNS:
            assert all(part in page for part in column.cell(row))
    assert "Heads of" not in page, "no row was pruned"


def test_a_pruned_row_has_a_map(comparison: Comparison) -> None:
    page = html_report(with_rows(pruned=PRUNED))
    assert f"<h2>Heads of {STUDENT.name}</h2>" in page and page.count("<h2>") == 1
    assert "<th>layer 2</th>" in page and page.count("layer 0, head") == 3
    assert page.count(">&times;</td>") == 3, "one for each head that was cut"


def test_no_word_of_a_row_is_markup() -> None:
    page = html_report(with_rows(name="<script>alert(1)</script>", pruned=PRUNED))
    assert "<script" not in page and page.count("&lt;script&gt;") == 2


def test_the_page_asks_no_other_for_anything() -> None:
    page = html_report(with_rows(pruned=PRUNED))
    assert not re.search(r"https?:|src=|@import|url\(", page)


def test_a_row_that_was_saved_without_heads_is_read() -> None:
    saved = with_rows().rows[1].model_dump()
    del saved["pruned"]
    assert type(STUDENT).model_validate(saved).pruned is None
    assert Comparison.model_validate_json(with_rows(pruned=PRUNED).model_dump_json()).rows[1].pruned


def test_noisy_figures_are_marked() -> None:
    assert "~9.95" not in html_report(with_rows())
    noisy = conditions(load=MachineLoad(other_work=0.3, steal=0.0))
    page = html_report(with_rows().model_copy(update={"circumstances": noisy}))
    assert "~9.95" in page and "~6.3x" in page and "NOISY figures" in page
