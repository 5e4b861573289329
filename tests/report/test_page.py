"""The report as HTML: nothing of others unescaped, all of the table, and only what is there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape

import pytest
from markupsafe import escape

from bertender.comparison.records import (
    Ancestor,
    CascadeFindings,
    Comparison,
    Confused,
    PrunedHeads,
)
from bertender.comparison.table import COLUMNS, comparison_lines
from bertender.core.machine import MachineLoad
from bertender.report import charts
from bertender.report.charts import heat_map, scatter, sensitivity, time_by_length
from bertender.report.page import cells_of, comparing, confusion_of, making, page, sort_key
from tests.comparison.conftest import comparison as comparison  # a fixture of these tests too
from tests.comparison.rows import STUDENT, conditions
from tests.report.conftest import LABEL, LABELS, LENGTHS, PRUNED, STUDENT_MADE, TEACHER_MADE, row

RUNTIME = "globalThis.drawn = true"


def html(comparison: Comparison) -> str:
    return page(comparison, runtime=RUNTIME)


def drawn(text: str) -> dict[str, dict[str, object]]:
    """The charts of a page, as its script reads them."""
    (data,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', text)
    return dict(json.loads(data))


def test_no_name_and_no_text_is_markup(rich: Comparison) -> None:
    text = html(rich)
    assert "<img" not in text and 'onerror="' not in text
    assert text.count("<script") == text.count("</script>") == 3 and "<!--" not in text
    assert text.count(str(escape(LABEL))) > 5
    everything = json.dumps(drawn(text))
    assert "<img" in everything, "as data, which a chart shows as text"


def test_the_policy_allows_the_scripts_of_the_page_alone(rich: Comparison) -> None:
    text = html(rich)
    policy = unescape(re.findall(r'Security-Policy" content="([^"]+)', text)[0])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r'<script type="module">(.*?)</script>', text, re.S)
    digests = [
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts
    ]
    assert len(digests) == 2 and all(f"'sha256-{digest}'" in policy for digest in digests)
    assert "unsafe-eval" not in policy and policy.count("unsafe-inline") == 1
    own = text.replace(charts.SCHEMA, "")
    assert not re.search(r"https?:|src=(?!x)|@import|url\(", unescape(own))


def test_the_page_holds_the_whole_table(comparison: Comparison) -> None:
    text = html(comparison)
    for line in comparison_lines(comparison):
        assert str(escape(line)) in text
    for each in comparison.rows:
        for column in COLUMNS:
            assert all(str(escape(part)) in text for part in column.cell(each))
    for absent in ("Heads of", "Confusion", "disagreements", "8 bits", "Labels of"):
        assert absent not in text, "the table has none"


def test_it_has_a_section_for_all_that_is_there(rich: Comparison) -> None:
    text = html(rich)
    for there in ("Heads of", "Confusion", "Worst disagreements", "in 8 bits", "Labels of"):
        assert there in text
    assert len(drawn(text)) == 4, "score against time, time by length, reliability, products"
    assert text.count(">&times;</td>") == 3, "one for each head that was cut"


def test_noisy_figures_are_marked(rich: Comparison) -> None:
    assert "~9.9" not in html(rich)
    noisy = conditions(labels=LABELS, load=MachineLoad(other_work=0.3, steal=0.0))
    text = html(rich.model_copy(update={"circumstances": noisy}))
    assert "~9.9" in text and "NOISY figures" in text and "timed on a busy machine" in text


@pytest.mark.parametrize(
    ("shown", "key"),
    [("0.893", "0.893"), ("~1.70", "1.70"), ("-", ""), ("-0.3", "-0.3"), ("6.3x", "6.3")],
)
def test_a_column_is_sorted_by_its_numbers(shown: str, key: str) -> None:
    assert sort_key(shown) == key


def test_a_head_is_as_dark_as_it_was_worth_and_says_whether_it_is_there() -> None:
    (first, upper), (third, lower) = cells_of(PRUNED)
    assert (first, third) == (0, 2), "by the numbers of the layers before some were dropped"
    assert [cell.remains for cell in (*upper, *lower)] == [False, True, False, True, False, True]
    assert [cell.share for cell in upper] == [0.25, 1.0, 0.0]
    assert upper[1].words == "layer 0, head 1: 1, remains"
    nothing = PrunedHeads(layers=(0,), importance=((0.0, 0.0),), kept=((0,),))
    assert [cell.share for _, cells in cells_of(nothing) for cell in cells] == [0.0, 0.0]


def test_a_confusion_of_many_labels_is_its_most_frequent_mistakes() -> None:
    few = confusion_of(row("a", 0.9, 1, 1), ("no", "yes"))
    assert few is not None and few.rows == [
        ("no", [(60, 0.75), (20, 0.25)]),
        ("yes", [(0, 0.0), (50, 1.0)]),
    ]
    labels = tuple(f"label {number}" for number in range(40))
    counts = [Confused(truth=n, predicted=n + 1, texts=40 - n) for n in range(30)]
    counts.append(Confused(truth=5, predicted=5, texts=99))
    many = confusion_of(row("a", 0.9, 1, 1, confusion=tuple(counts)), labels)
    assert many is not None and not many.rows and len(many.mistakes) == 20
    assert many.mistakes[0] == ("label 0", "label 1", 40)
    assert confusion_of(STUDENT, labels) is None


def values_of(spec: charts.Spec | None) -> list[dict[str, object]]:
    assert spec is not None
    return list(spec["data"]["values"])


def test_the_scatter_marks_the_front_and_names_rows_by_value(rich: Comparison) -> None:
    values = values_of(scatter(rich))
    assert [each["front"] for each in values] == ["yes", "yes", "yes"]
    worse = row("worse", 0.80, 20.0, 99.0)
    values = values_of(scatter(rich.model_copy(update={"rows": (*rich.rows, worse)})))
    assert [each["front"] for each in values] == ["yes", "yes", "yes", "no"]
    assert values[3]["number"] == "4" and values[3]["row"] == "worse"


def test_times_are_grouped_by_length(rich: Comparison) -> None:
    values = [each for each in values_of(time_by_length(rich)) if each["row"] == "teacher"]
    assert sum(int(str(each["texts"])) for each in values) == 80
    # texts of n tokens take 9.9 * n / 13 ms
    for each in values:
        assert float(str(each["ms"])) == pytest.approx(9.9 * float(str(each["length"])) / 13)
    alike = tuple(tuple((7,) * 20 for _ in rounds) for rounds in LENGTHS)
    assert time_by_length(rich.model_copy(update={"timed_lengths": alike})) is None


def test_products_have_their_worst_ratio(rich: Comparison) -> None:
    (value,) = values_of(sensitivity(rich.rows[-1]))
    assert value == {"product": "layer.0/MatMul", "value": 19.5}
    assert sensitivity(rich.rows[0]) is None


def test_a_map_has_a_colour_for_each_sign() -> None:
    values = values_of(heat_map([[0.1, -0.3], [None, 0.2]], "change"))
    assert [each["side"] for each in values] == ["more", "less", "more"]
    assert [each["apart"] for each in values] == [0.1, 0.3, 0.2]


def test_commands_have_what_is_not_at_its_default(rich: Comparison) -> None:
    steps = making((STUDENT_MADE, TEACHER_MADE))
    assert [command for _, command in steps] == [
        "bertender finetune --task sst2 --select 0.1 --max-train 2000 --epochs 2 "
        "--learning-rate 0.0002 --teacher runs/encoder --out runs/teacher",
        "bertender distill --teacher runs/teacher --no-dropout --layers 3 --out 'runs/the student'",
    ]
    words = comparing(rich)
    assert words == "bertender compare runs/teacher 'runs/the student' --seed 4"
    fewer = conditions(labels=LABELS, source={**TEACHER_MADE.source, "max_dev": 120})
    words = comparing(rich.model_copy(update={"circumstances": fewer}))
    assert words == "bertender compare runs/teacher 'runs/the student' --max-dev 120 --seed 4"
    pair = CascadeFindings(
        **{"small": "student", "strong": "teacher", "threshold": 0.9, "chosen_on": 50},
        **{"score": 0.9, "strong_score": 0.91, "passed_on": 0.2},
    )
    both = row("both", 0.9, 4.0, 160.0, cascade=pair, lineage=(STUDENT_MADE, TEACHER_MADE))
    words = comparing(rich.model_copy(update={"rows": (*rich.rows, both)}))
    assert " --cascade 'runs/the student' runs/teacher --seed 4" in words
    assert making((STUDENT_MADE,)) == [(STUDENT_MADE, "")], "its parent is not known"
    gone = STUDENT_MADE.model_copy(update={"missing": True, "place": "parent abc: gone"})
    assert making((gone,)) == [(gone, "")]


@pytest.mark.parametrize(
    ("on", "flags"),
    [
        (TEACHER_MADE.source, ""),
        ({"train": "fresh.csv", "dev": "dev.csv"}, "--train fresh.csv --dev dev.csv "),
    ],
)
def test_a_calibrated_model_is_made_by_two_commands(on: dict[str, object], flags: str) -> None:
    sure = TEACHER_MADE.model_copy(update={"calibrated_by": "temperature", "calibrated_on": on})
    ((_, commands),) = making((sure,))
    first, second = commands.splitlines()
    assert first.startswith("bertender finetune ")
    assert first.endswith(" --out runs/teacher-uncalibrated")
    assert second == (
        f"bertender calibrate runs/teacher-uncalibrated --method temperature {flags}"
        "--out runs/teacher"
    )


def test_an_import_is_made_with_all_that_was_said() -> None:
    config = {
        **{"source": "their/model@main", "revision": "abc", "labels": ["bad", "good"]},
        **{"problem_type": "ranking", "optimize": "none"},
    }
    made = Ancestor(place="runs/made", stage="import", config=config)
    own = "bertender import their/model --revision abc --labels bad,good"
    assert making((made,)) == [(made, f"{own} --problem-type ranking --out runs/made")]
    task = {"dev": "dev.csv", "problem_type": "ranking"}
    judged = made.model_copy(update={"source": task})
    command = f"{own} --dev dev.csv --problem-type ranking --out runs/made"
    assert making((judged,)) == [(judged, command)]
    cached = Ancestor(place="their/model", stage="import", config={"source": "their/model"})
    assert making((cached,)) == [(cached, "")], "of the cache folder"


def test_a_command_has_the_weights_of_its_losses() -> None:
    config = {**STUDENT_MADE.config, "weights": {"soft": 0.7, "hard": 0.3}}
    student = STUDENT_MADE.model_copy(update={"config": config})
    *_, (_, command) = making((student, TEACHER_MADE))
    assert " --weights soft=0.7,hard=0.3 " in command
