"""The pruning benchmark: points of every importance, made once, and the curves of them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from benchmarks.pruning import measuring as pruning
from benchmarks.pruning.curve import curve, pruning_block, pruning_svg
from benchmarks.pruning.measuring import (
    CONTROL,
    IMPORTANCES_SHOWN,
    PruningBenchmark,
    PruningPoint,
    points_of,
    run,
)
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.tasks.task import Task
from distill.pruning.importance import IMPORTANCES


def benchmark(points: tuple[PruningPoint, ...]) -> PruningBenchmark:
    return PruningBenchmark(
        task="toy",
        metric="accuracy",
        n=40,
        unpruned=0.9,
        heads=(4, 4),
        recovery_texts=20,
        config={"epochs": 1},
        environment=environment(),
        points=points,
    )


def point(
    name: str, share: float, score: float, seed: int = 0, recovered: bool = False
) -> PruningPoint:
    return PruningPoint(
        importance=name, share=share, recovered=recovered, seed=seed, heads=(2, 2), score=score
    )


def test_chance_is_drawn_more_than_once_and_stands_beside_every_importance() -> None:
    plan = points_of((0.1, 0.5), (0.5,), 3)
    assert set(IMPORTANCES_SHOWN) <= set(IMPORTANCES)
    assert len([each for each in plan if each[0] == CONTROL and not each[2]]) == 6
    assert len(plan) == 2 * (len(IMPORTANCES_SHOWN) - 1 + 3) + len(IMPORTANCES_SHOWN)
    assert len(set(plan)) == len(plan)


def test_curve_and_table_are_means_of_the_points(tmp_path: Path) -> None:
    points = (
        point("gradient", 0.5, 0.8),
        point(CONTROL, 0.5, 0.6, 0),
        point(CONTROL, 0.5, 0.7, 1),
        point("gradient", 0.5, 0.88, recovered=True),
    )
    assert curve(points, CONTROL, False) == {0.5: pytest.approx(0.65)}
    (tmp_path / "result.json").write_text(benchmark(points).model_dump_json())
    text = pruning_block({"result.json": tmp_path / "result.json"})
    assert "| `random` | 0.650 |" in text and "| `gradient`, recovered | 0.880 |" in text
    assert "(pruning-toy.svg)" in text and "read once" not in text
    apart = benchmark(points).model_copy(update={"chosen_on": "selection"})
    (tmp_path / "result.json").write_text(apart.model_dump_json())
    assert "held-out texts, read once" in pruning_block({"result.json": tmp_path / "result.json"})


def test_the_picture_has_a_line_for_each_curve_at_its_height() -> None:
    points = (
        point("gradient", 0.5, 0.8),
        point(CONTROL, 0.5, 0.5),
        point(CONTROL, 0.5, 0.7, recovered=True),
    )
    root = ElementTree.fromstring(pruning_svg(benchmark(points)))
    lines = [each for each in root if each.tag.endswith("polyline")]
    assert len(lines) == 3
    assert ["stroke-dasharray" in line.attrib for line in lines] == [False, False, True]
    ends = [float(line.attrib["points"].split()[-1].split(",")[1]) for line in lines]
    assert ends[0] < ends[2] < ends[1], "a better score stands higher"


@pytest.mark.slow
def test_points_that_are_there_are_not_made_again(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(pruning, "recorded_task", lambda artifact, changes: apart)
    out, cuts = tmp_path / "result.json", []
    prune = pruning.prune
    monkeypatch.setattr(pruning, "prune", lambda *given: (cuts.append(given[2]), prune(*given))[1])

    def go(shares: str, epochs: int = 1) -> PruningBenchmark:
        run(teacher.path, tmp_path / "work", out, shares, "", 2, 40, epochs, 5e-5)
        return PruningBenchmark.model_validate_json(out.read_text())

    first = go("0.5")
    assert len(cuts) == len(first.points) == len(IMPORTANCES_SHOWN) + 1
    assert all(sum(each.heads) == 8 for each in first.points)
    assert first.chosen_on == "selection"
    for each in first.points:  # shares of 24 and of 32 texts
        assert each.choice is not None and round(24 * each.choice, 6).is_integer()
        assert round(32 * each.score, 6).is_integer()
    again = go("0.5,0.75")
    assert again.points[: len(first.points)] == first.points
    assert len(cuts) == len(again.points) == 2 * len(first.points)
    with pytest.raises(typer.BadParameter, match="other config: give another --out"):
        go("0.5", epochs=2)
    out.write_text("{")
    with pytest.raises(typer.BadParameter, match=r"result\.json is not a result of this benchmark"):
        go("0.5")
