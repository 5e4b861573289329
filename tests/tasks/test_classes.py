"""Label columns: many kinds of classes are read; scores, ids and texts are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bertender.core.errors import DataError
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from tests.tasks.writers import WRITERS

SOUND: dict[str, list[Any]] = {
    "77 intents": [f"intent {row * row % 77}" for row in range(300)],
    "150 intents, two rows each": [f"intent {row % 150}" for row in range(300)],
    "77 intents, one row each": [f"intent {row}" for row in range(45)],
    "stars": [row % 5 + 1 for row in range(60)],
    "stars as decimals": [f"{row % 5 + 1}.0" for row in range(60)],
    "half stars": [f"{row % 10 / 2}" for row in range(60)],
    "half points up to ten": [f"{row % 21 / 2}" for row in range(100)],
    "tenths": [f"{row % 10 / 10}" for row in range(100)],
    "two classes": [row % 2 for row in range(60)],
    "topics by number": [row % 150 for row in range(600)],
    "codes": [10_000 + row % 120 * 37 for row in range(400)],
    "versions": [f"1.{row % 15}.0" for row in range(100)],
}
ASKED: dict[str, tuple[list[Any], str]] = {
    "similarity": ([f"{row * 7 % 47 / 9.4:.2f}" for row in range(1000)], "47 .* in 1000 .*scores"),
    "tenths": ([f"{row % 11 / 10}" for row in range(1000)], "11 .* look like scores"),
    "decimal commas": ([f"{row % 30 / 10}".replace(".", ",") for row in range(99)], "scores"),
    "prices": ([row * row for row in range(60)], "60 .* scores or row numbers"),
    "ids": ([f"id-{row}" for row in range(60)], "60 .* texts or names of rows"),
    "texts": ([f"a text of row {row % 58}" for row in range(60)], "58 .* texts or names of rows"),
}


def load(folder: Path, labels: Sequence[Any], **settings: Any) -> Task:
    rows = [{"text": f"text {row}", "label": label} for row, label in enumerate(labels)]
    train, dev = (WRITERS[".csv"](folder / f"{name}.csv", rows) for name in ("train", "dev"))
    return load_task(TaskConfig(train=train, dev=dev, select=0.0, **settings))


@pytest.mark.parametrize("name", SOUND)
def test_classes_are_read(name: str, tmp_path: Path) -> None:
    assert len(load(tmp_path, SOUND[name]).labels) == len({*SOUND[name]})


@pytest.mark.parametrize("name", ASKED)
def test_another_column_is_asked_about(name: str, tmp_path: Path) -> None:
    """Who says that they are classes goes on, in the stages that follow as well."""
    labels, said = ASKED[name]
    with pytest.raises(DataError, match=f"column 'label': .*{said}") as caught:
        load(tmp_path, labels)
    assert repr(str(labels[1])) in str(caught.value)
    assert "--problem-type single_label_classification" in str(caught.value)
    task = load(tmp_path, labels, problem_type="single_label_classification")
    assert len(task.labels) == len({*labels})
    assert load_task(TaskConfig.parse(task.source)) == task
