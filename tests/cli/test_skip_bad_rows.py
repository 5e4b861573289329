"""--skip-bad-rows from the flag to the artifact, and back from the artifact to the next command."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.tasks.task import Task, TaskConfig
from distill.distillation.config import DistillConfig
from distill.distillation.texts import with_unlabelled
from tests.cli.made import FAST, Made
from tests.front import fail, last_line, succeed

RECIPE = """
summary: one step
task: {{task: toy, train: {train}, dev: {dev}, skip_bad_rows: true}}
steps:
  - {{name: words, stage: baseline}}
"""


@pytest.fixture
def spoilt(made: Made, tmp_path: Path) -> Path:
    """The toy task's training file, with two rows that cannot be used."""
    path = Path(shutil.copy(made.files.train, tmp_path / made.files.train.name))
    whole = path.read_bytes()
    path.write_bytes(whole + b"caf\xe9,fruit\n,tool\n")
    return path


def test_from_the_flag_to_the_next_command(
    made: Made, spoilt: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ("--train", spoilt, "--dev", made.files.dev)
    lines = len(made.files.train.read_bytes().splitlines())
    assert f"line {lines + 1}: byte 0xe9" in fail("baseline", *flags, "--out", tmp_path / "no")
    out = tmp_path / "words"
    result = succeed("baseline", *flags, "--skip-bad-rows", "--out", out, "--json")
    assert "2 bad rows are left out" in caplog.text
    left_out = last_line(result)["left_out"]
    assert left_out["count"] == 2
    places = [row["place"] for row in left_out["first"]]
    assert places == [f"line {lines + 1}", f"line {lines + 2}, column 'text'"]
    assert {row["file"] for row in left_out["first"]} == {str(spoilt)}

    card = Artifact.load(out).card
    assert card.task.left_out is not None
    assert card.task.left_out.model_dump(mode="json") == left_out
    assert card.task.source["skip_bad_rows"] is True
    for words in (("verify", out, out), ("compare", out, *FAST)):
        assert last_line(succeed(*words, "--json"))["left_out"] == left_out
    assert last_line(succeed("show", out, "--json"))[0]["left_out"] == left_out


def test_in_a_recipe(made: Made, spoilt: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE.format(train=spoilt, dev=made.files.dev))
    said = last_line(succeed("run", path, "--out", tmp_path / "out", "--json"))
    assert said["steps"][0]["result"]["left_out"]["count"] == 2


@pytest.mark.parametrize("skips", [True, False])
def test_unlabelled_texts(skips: bool, task: Task, spoilt: Path) -> None:
    mine = replace(task, source=TaskConfig(skip_bad_rows=skips).model_dump(mode="json"))
    if not skips:
        with pytest.raises(DataError, match="byte 0xe9"):
            with_unlabelled(mine, DistillConfig(unlabelled=spoilt))
        return
    more, _ = with_unlabelled(mine, DistillConfig(unlabelled=spoilt))
    assert len(more.train) == 2 * len(task.train)
    assert more.left_out is not None and more.left_out.count == 2
    assert more.record().left_out == more.left_out
