"""A method, a scheme and a stage are added as rows, and run from training to the real endpoint.

No file of the product changes: what the tables list is all that the command line, the recipes and
the gates know.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bertender.core.artifact import Artifact
from bertender.core.config import Place
from bertender.models.opening import open_classifier
from bertender.recipes.recipe import parse_recipe, run_recipe
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from distill.methods import METHODS
from quantize.schemes import SCHEMES
from tests.extension import WARM, WITHOUT_HEAD
from tests.front import last_line, succeed, write_toy_files

pytestmark = pytest.mark.slow

TRAINING = {"epochs": 4, "learning_rate": 3e-3, "batch_size": 16}
LEARNED = {"method": "warm", "layers": 2, **TRAINING}
STEPS = (
    {"name": "student", "stage": "distill", "with": LEARNED},
    {"name": "sharp", "stage": "sharpen", "from": "student", "with": {"by": 3.0}},
    {"name": "onnx", "stage": "export", "from": "sharp"},
    {"name": "int8", "stage": "quantize", "from": "onnx", "with": {"scheme": "without-head"}},
    {"name": "parity", "stage": "verify", "from": ["sharp", "int8"]},
    {"name": "endpoint", "stage": "endpoint", "from": "int8", "with": {"texts": 4}},
)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    sharpen = Place("tests.extension:SHARPEN", "Multiply a classifier's logits.")
    monkeypatch.setitem(METHODS, "warm", WARM)
    monkeypatch.setitem(STAGES.places, "sharpen", sharpen)
    monkeypatch.setitem(SCHEMES, "without-head", WITHOUT_HEAD)


@pytest.mark.usefixtures("added")
def test_added_rows_run_to_the_endpoint(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    files = write_toy_files(tmp_path, task)
    settings = {"teacher": str(teacher.path), "epochs": 6, "learning_rate": 3e-3, "batch_size": 16}
    first = {"name": "teacher", "stage": "finetune", "with": settings}
    steps: list[dict[str, Any]] = [first, *({"from": "teacher", **step} for step in STEPS)]
    text = yaml.safe_dump({"summary": "added rows", "task": files.task, "steps": steps})
    outcomes = list(run_recipe(parse_recipe("added", text), tmp_path / "run"))
    assert [outcome.step.stage for outcome in outcomes][1:] == [step["stage"] for step in STEPS]
    student, sharp = (Artifact.load(tmp_path / "run" / name) for name in ("student", "sharp"))
    logits = [open_classifier(each).logits(task.dev.examples) for each in (student, sharp)]
    np.testing.assert_allclose(logits[1], 3 * logits[0], rtol=1e-4, atol=1e-5)
    int8 = Artifact.load(tmp_path / "run" / "int8").card.findings.quantization
    assert int8 is not None and int8.products == 2 * 6 + 1, "the pooler's, and not the head's"


@pytest.mark.usefixtures("added")
def test_added_rows_are_commands_and_choices(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    files, out = write_toy_files(tmp_path, task), tmp_path / "sharp"
    assert "sharpen" in succeed("--help").stdout
    assert "warm" in succeed("methods").stdout and "without-head" in succeed("schemes").stdout
    said = succeed("sharpen", teacher.path, "--out", out, "--by", "2", *files.flags, "--json")
    assert last_line(said)["stage"] == "sharpen"
    assert Artifact.load(out).card.config["by"] == 2
