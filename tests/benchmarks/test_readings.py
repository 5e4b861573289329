"""The words under the tables say what the tables say, and follow them when results change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.words import above, below, holding, listed, span
from benchmarks.documents.block import ROOT
from benchmarks.documents.blocks import BLOCKS, TABLES
from benchmarks.documents.readings import READINGS
from benchmarks.documents.readings.distilling_gain import control_reading
from benchmarks.methods.reading import methods_reading
from benchmarks.quantization.reading import quantization_reading
from bertender.metrics.records import Change

INTERVAL = re.compile(r"([+-]\d+\.\d) \[([+-]\d+\.\d), ([+-]\d+\.\d)\]")
CHANGES = {
    "up": Change(value=2.0, low=0.1, high=4.0),
    "down": Change(value=-2.0, low=-4.0, high=-0.1),
    "open": Change(value=1.0, low=-1.0, high=3.0),
    "edge": Change(value=1.0, low=0.0, high=2.0),
}


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., dict[str, Path]]:
    """Returns the files of a reading's block, the first of them changed by a function."""

    def files_of(name: str, change: Callable[[Any], None]) -> dict[str, Path]:
        files = {file: ROOT / file for file in BLOCKS[f"{name}-reading"].files}
        first = next(iter(files))
        raw = json.loads(files[first].read_text(encoding="utf-8"))
        change(raw)
        files[first] = tmp_path / "changed.json"
        files[first].write_text(json.dumps(raw), encoding="utf-8")
        return files

    return files_of


def test_an_interval_is_on_one_side_or_holds_the_line() -> None:
    assert (above(CHANGES), below(CHANGES)) == (["up"], ["down"])
    assert holding(CHANGES) == ["open", "edge"]
    assert above(CHANGES, line=-5.0) == list(CHANGES)


@pytest.mark.parametrize(
    ("words", "said"), [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c")]
)
def test_lists_read_as_in_a_sentence(words: list[str], said: str) -> None:
    assert listed(words) == said


def test_a_range_of_equal_numbers_is_one_number() -> None:
    assert (span([1.52, 1.48], 1, "x"), span([1.4, 1.6], 1)) == ("1.5x", "1.4 to 1.6")


@pytest.mark.parametrize("name", READINGS)
def test_every_reading_stands_next_to_its_table(name: str) -> None:
    """Under it, or above a long one; nothing else that is generated stands between."""
    text = (ROOT / TABLES[name].document).read_text(encoding="utf-8")
    marks = re.findall(r"<!-- begin (\S+) -->", text)
    assert abs(marks.index(name) - marks.index(f"{name}-reading")) == 1


def in_document(name: str) -> str:
    text = (ROOT / BLOCKS[name].document).read_text(encoding="utf-8")
    return text.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]


def sides_in_the_table(task: int) -> tuple[set[str], set[str], set[str]]:
    """Return which methods a column has above 0, which below, and which end at a rounded 0."""
    rows = [row.split(" | ") for row in in_document("methods").splitlines() if row[:3] == "| `"]
    cells = {row[0].strip("| "): INTERVAL.search(row[2 + task]) for row in rows}
    bounds = {name: (float(cell[2]), float(cell[3])) for name, cell in cells.items() if cell}
    higher = {name for name, (low, _) in bounds.items() if low > 0}
    lower = {name for name, (_, high) in bounds.items() if high < 0}
    return higher, lower, {name for name, ends in bounds.items() if 0.0 in ends}


@pytest.mark.parametrize("task", range(len(TABLES["methods"].files)))
def test_methods_are_said_to_gain_where_the_table_has_them_above_0(task: int) -> None:
    said = re.findall(
        r"^- [\w, ]+: above 0 for (.*?); below 0 for (.*?)\. ", in_document("methods-reading"), re.M
    )
    higher, lower = (set(re.findall("`[^`]+`", side)) for side in said[task])
    shown_higher, shown_lower, unclear = sides_in_the_table(task)
    assert (higher - unclear, lower - unclear) == (shown_higher, shown_lower)


def test_a_method_that_answers_as_the_control_is_not_said_to_gain(
    changed: Callable[..., dict[str, Path]],
) -> None:
    def as_control(raw: Any) -> None:
        control = {each["seed"]: each for each in raw["students"] if each["method"] == "hard"}
        for student in raw["students"]:
            if student["method"] == "tinybert":
                student["predictions"] = control[student["seed"]]["predictions"]

    line = methods_reading(changed("methods", as_control)).partition("- mrpc")[0]
    assert "sst2: above 0 for" in line
    assert "`tinybert`" not in line


def set_scores(raw: Any, scores: Mapping[str, float]) -> None:
    for row in raw["rows"]:
        for start, score in scores.items():
            if row["name"].startswith(start) and row["precision"] == "float32":
                row["score"]["value"] = score


@pytest.mark.parametrize(
    ("distilled", "hard", "said"),
    [
        (0.91, 0.89, "above every seed of the control"),
        (0.88, 0.89, "below every seed of the control: distilling lost"),
        (0.89, 0.89, "Their seeds overlap"),
    ],
)
def test_distilling_is_said_to_gain_by_its_seeds_alone(
    distilled: float, hard: float, said: str, changed: Callable[..., dict[str, Path]]
) -> None:
    files = changed("sst2", lambda raw: set_scores(raw, {"student": distilled, "hard": hard}))
    assert said in control_reading(files)


def test_the_first_run_in_which_distilling_gained_nothing_is_told() -> None:
    reading = in_document("sst2-reading")
    assert "distilling did not beat the control: 0.8823 against 0.8834" in reading
    assert BLOCKS["sst2-reading"].files[-1] in reading


@pytest.mark.parametrize(("bound", "named"), [("min_cosine", True), ("agreement", False)])
def test_an_earlier_gate_is_named_until_it_is_measured_again(
    bound: str, named: bool, changed: Callable[..., dict[str, Path]]
) -> None:
    files = changed("quantization", lambda raw: raw.update(refused={"static-mse": f"{bound} is 0"}))
    file, path = next(iter(files.items()))
    assert ("earlier parity gate" in quantization_reading({file: path})) == named


def test_a_loss_that_can_be_told_is_told(changed: Callable[..., dict[str, Path]]) -> None:
    def losing(raw: Any) -> None:
        row = next(each for each in raw["comparison"]["rows"] if each["name"] == "dynamic")
        row["change"] = {"value": -3.0, "low": -5.0, "high": -1.0}

    reading = quantization_reading(changed("quantization", losing))
    assert "`dynamic` changes the score by -3.0 [-5.0, -1.0] points." in reading


def test_the_demo_ends_with_its_gain() -> None:
    reading = in_document("docs-demo")
    (file,) = BLOCKS["docs-demo"].files
    raw = json.loads((ROOT / file).read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in raw["rows"]}
    teacher, served = (
        rows[name]["size"]["artifact_size_bytes"] for name in ("teacher", "student-int8")
    )
    assert f"MB instead of {teacher / 1e6:.0f}, " in reading
    assert f"That is {teacher / served:.1f} times smaller" in reading
    score, before = (rows[name]["score"]["value"] for name in ("student-int8", "teacher"))
    assert f"{100 * score:.0f} % right instead of {100 * before:.0f} %" in reading
    assert file in reading


def test_the_pool_size_that_loses_nothing_is_named() -> None:
    reading = in_document("training-reading")
    assert "`pooled-4` is the fastest way that loses nothing, 15.1 times" in reading
