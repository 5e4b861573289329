"""One recipe over several tasks: a folder and a row of scores each, and their average."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import bertender
from bertender.comparison.averages import Average
from bertender.core.errors import ConfigError
from bertender.metrics.metric import Score
from bertender.recipes.recipe import parse_recipe
from bertender.tasks.named import TASKS
from tests.front import fail, last_line, succeed
from tests.toys import ToyNamedTask, three_kinds, toy_task

TIMING = {
    "processes": 1,
    "rounds": 2,
    "single_texts": 2,
    "batch_size": 2,
    "warmup_rounds": 0,
    "threads": 1,
    "noisy": True,
}
STEPS = [
    {"name": "first", "stage": "baseline", "with": {"longest_ngram": 1}},
    {"name": "second", "stage": "baseline"},
    {"name": "table", "stage": "compare", "from": ["first", "second"], "with": TIMING},
]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, task in {"fruit": toy_task(), "kinds": three_kinds()}.items():
        monkeypatch.setitem(TASKS, name, ToyNamedTask.of(task))
    written = tmp_path / "toys.yaml"
    written.write_text(
        yaml.safe_dump({"summary": "toys", "tasks": ["fruit", "kinds"], "steps": STEPS})
    )
    return written


def test_each_task_has_a_folder_and_the_average_a_row(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    printed = succeed("run", str(recipe), "--out", str(out), "--json")
    report = last_line(printed)
    assert list(report["tasks"]) == ["fruit", "kinds"]
    tables = {name: json.loads((out / name / "table.json").read_text()) for name in report["tasks"]}
    averages = json.loads((out / "averages.json").read_text())
    assert averages == report["averages"]
    for row in averages["rows"]:
        scores = [
            next(each for each in table["rows"] if each["name"] == row["name"])["score"]["value"]
            for table in tables.values()
        ]
        assert [each["value"] for each in row["scores"].values()] == scores
        assert row["average"]["value"] == pytest.approx(100 * sum(scores) / 2)
    assert averages["rows"][0]["retained"] == 1
    (out / "averages.json").unlink()
    bertender.run_recipe(recipe, out=out)
    found = json.loads((out / "averages.json").read_text())
    assert [row["scores"] for row in found["rows"]] == [row["scores"] for row in averages["rows"]]
    again = last_line(succeed("run", str(recipe), "--out", str(out), "--json"))
    assert all(
        step["reused"]
        for steps in again["tasks"].values()
        for step in steps
        if step["stage"] != "compare"
    )


def test_some_of_the_tasks_are_run(recipe: Path, tmp_path: Path) -> None:
    shown = succeed("run", str(recipe), "--tasks", "kinds", "--out", str(tmp_path / "one")).output
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["kinds"]
    assert "kinds [1/3] first" in shown and "Average" not in shown


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("kinds,frut", "'frut'. Did you mean 'fruit'"),
        ("kinds,kinds", "twice"),
        ("mnli,mnli-mismatched", "Leave 'mnli-mismatched' out"),
        ("", "--tasks names no task"),
    ],
)
def test_what_is_no_list_of_tasks_is_refused(
    recipe: Path, tmp_path: Path, tasks: str, said: str
) -> None:
    assert said in fail("run", str(recipe), "--tasks", tasks, "--out", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_what_the_last_task_lacks_shows_before_the_first_runs(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ToyNamedTask("a toy", ("a", "b"), "accuracy", ("text",), ConfigError("no file of it"))
    monkeypatch.setitem(TASKS, "kinds", gone)
    assert "no file of it" in fail("run", str(recipe), "--out", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no file of it"):
        bertender.run_recipe(recipe, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("keys", [{}, {"task": {"task": "docs"}, "tasks": ["docs"]}])
def test_a_recipe_has_one_task_or_several(keys: dict[str, object]) -> None:
    text = yaml.safe_dump({"summary": "toys", **keys, "steps": STEPS})
    with pytest.raises(ConfigError, match=r"`task`.*`tasks`"):
        parse_recipe("toys", text)


def test_the_interval_of_an_average_shrinks_with_the_tasks() -> None:
    one = Score(metric="accuracy", value=0.8, low=0.7, high=0.9, n=50)
    four = Average.of([one] * 4)
    assert (four.value, four.low, four.high) == pytest.approx((80, 75, 85))
