"""`kill -9` in the middle of every step of a recipe; run again, it ends with the same artifacts."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bertender.core.artifact import Artifact
from bertender.recipes.recipe import Recipe, StepOutcome, parse_recipe, run_recipe
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task
from tests.forked import start
from tests.front import write_toy_files

TRAINING = {
    "max_length": 32,
    "batch_size": 16,
    "learning_rate": 3.0e-3,
    "checkpoint_steps": 4,
    "precision": "fp32",
}
TIMING = {
    "processes": 1,
    "noisy": True,  # the process that dies sees the machine as it is
    "rounds": 2,
    "single_texts": 4,
    "batch_size": 4,
    "warmup_rounds": 0,
    "threads": 1,
}
STEP_RECIPE = {
    "bag": {"stage": "baseline"},
    "encoder": {
        "stage": "pretrain",
        "with": {
            **TRAINING,
            "vocabulary_size": 200,
            "layers": 4,
            "hidden_size": 32,
            "epochs": 12,
        },
    },
    "smaller": {
        "stage": "distill-general",
        "from": "encoder",
        "with": {**TRAINING, "layers": 2, "epochs": 12},
    },
    "teacher": {"stage": "finetune", "from": "encoder", "with": {**TRAINING, "epochs": 6}},
    "student": {"stage": "distill", "from": "teacher", "with": {**TRAINING, "layers": 2}},
    "pruned": {
        "stage": "prune",
        "from": "student",
        "with": {**TRAINING, "heads": 0.5, "vocab": "task", "rounds": 2},
    },
    "student-onnx": {"stage": "export", "from": "student"},
    "student-int8": {"stage": "quantize", "from": "student-onnx"},
    "student-browser": {
        "stage": "bundle",
        "from": "student-onnx",
        "with": {"to": "browser", "golden_texts": 3},
    },
    "parity": {"stage": "verify", "from": ["student", "student-int8"]},
    "table": {"stage": "compare", "from": ["teacher", "student-int8", "bag"], "with": TIMING},
    "endpoint": {"stage": "endpoint", "from": "student-int8", "with": {"texts": 3}},
}


@dataclass(frozen=True)
class Death:
    """A process dies in a step, at the call of a function after so many that went well."""

    step: str
    function: str
    calls: int = 0


A_TRAINING_STEP = "bertender.training.steps:attention_of"
A_FILE_OF_A_CHECKPOINT = "bertender.training.checkpoint:save_file"
"""Of optimizer, scheduler and random state: three a checkpoint."""
MODEL_WRITTEN = "bertender.gate.judge:check_parity"
BEFORE_THE_CARD = "bertender.core.artifact:library_versions"
BEFORE_PUBLISHING = "bertender.core.files:publish"
BEFORE_SAVING = "bertender.recipes.stage:save_result"
BEFORE_THE_STAMP = "bertender.core.build_once:_Stamp.write"

DEATHS = (
    Death("bag", BEFORE_THE_CARD),
    Death("encoder", BEFORE_PUBLISHING, calls=1),
    Death("encoder", A_TRAINING_STEP, calls=6),
    Death("smaller", A_TRAINING_STEP, calls=6),
    Death("teacher", A_TRAINING_STEP, calls=10),
    Death("teacher", A_FILE_OF_A_CHECKPOINT, calls=5),
    Death("teacher", BEFORE_PUBLISHING),
    Death("student", A_TRAINING_STEP, calls=6),
    Death("student", BEFORE_THE_STAMP),
    Death("pruned", A_TRAINING_STEP, calls=8),
    Death("student-onnx", MODEL_WRITTEN),
    Death("student-int8", MODEL_WRITTEN),
    Death("student-int8", BEFORE_PUBLISHING),
    Death("student-browser", BEFORE_PUBLISHING),
    Death("parity", BEFORE_SAVING),
    Death("table", BEFORE_SAVING),
    Death("endpoint", "serve.client.endpoint:Endpoint.classify", calls=1),
)


def toy_recipe(folder: Path, task: Task) -> Recipe:
    files = write_toy_files(folder, task)
    steps = [{"name": name, **step} for name, step in STEP_RECIPE.items()]
    text = yaml.safe_dump({"summary": "every step", "task": files.task, "steps": steps})
    recipe = parse_recipe("every-step", text)
    for step in recipe.steps:
        if step.stage in ("pretrain", "distill-general"):
            step.settings["corpus"] = str(files.corpus)
    return recipe


def run_and_die(recipe: Recipe, out: Path, temporary: Path, death: Death | None) -> None:
    """Run a recipe in a process of its own until it dies."""
    os.environ["TMPDIR"] = str(temporary)
    if death:
        module, _, path = death.function.partition(":")
        *owners, name = path.split(".")
        owner = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, name, dying(getattr(owner, name), death.calls))
    for _ in run_recipe(recipe, out):
        pass


def dying(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return the function, which after so many calls ends the process as `kill -9` does."""
    left = calls

    def call(*arguments: Any, **settings: Any) -> Any:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*arguments, **settings)

    return call


def run_forked(recipe: Recipe, out: Path, death: Death | None = None) -> int | None:
    temporary = out.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    process = start(run_and_die, recipe, out, temporary, death, said=out.parent / "said")
    process.join(120)
    return process.exitcode


def digests(out: Path) -> dict[str, str]:
    return {
        card.parent.name: Artifact.load(card.parent).digest
        for card in out.glob("*/*.json")
        if card.name == "artifact.json"
    }


def visible(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if not path.name.startswith(".")}


def without_endpoint(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"steps": recipe.steps[:-1]})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, task: Task) -> tuple[Recipe, Path]:
    """The recipe, and the folder of a run (without its endpoint) that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    recipe = toy_recipe(folder, task)
    assert run_forked(without_endpoint(recipe), folder / "run") == 0, said(folder)
    return recipe, folder / "run"


def said(folder: Path) -> str:
    return (folder / "said.err").read_text()


def test_every_kind_of_step_is_killed() -> None:
    copies = {"calibrate"}  # of a model, published as those of all others are
    assert {step["stage"] for step in STEP_RECIPE.values()} == set(STAGES) - copies
    assert {death.step for death in DEATHS} == set(STEP_RECIPE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "death",
    [
        pytest.param(
            death,
            id=f"{death.step}-{death.function.rpartition('.')[2]}",
            marks=[pytest.mark.server] if death.step == "endpoint" else [],
        )
        for death in DEATHS
    ],
)
def test_a_killed_step_is_done_again_to_the_same_end(
    death: Death, uninterrupted: tuple[Recipe, Path], tmp_path: Path
) -> None:
    whole, undisturbed = uninterrupted
    recipe = whole if death.step == "endpoint" else without_endpoint(whole)
    out = shutil.copytree(undisturbed, tmp_path / "run")
    output = f"{death.step}{STAGES[stage_of(death.step)].suffix}"
    forget(out, output)
    before = visible(out)

    assert run_forked(recipe, out, death) == -signal.SIGKILL, said(tmp_path)
    expected = {output} if death.function == BEFORE_THE_STAMP else set()
    assert visible(out) - before == expected, "what a killed step shows is complete or nothing"

    outcomes = list(run_recipe(recipe, out))
    assert [outcome.step.name for outcome in outcomes if not outcome.reused] == [death.step]
    assert digests(out) == digests(undisturbed)
    leftovers = [path.name for path in out.iterdir() if path.name not in visible(out)]
    assert leftovers == [".stamps"]
    assert_same_report(outcomes, undisturbed)
    assert_nothing_runs_in(tmp_path / "tmp")


def stage_of(step: str) -> str:
    return str(STEP_RECIPE[step]["stage"])


def forget(out: Path, output: str) -> None:
    """Take the output of a step away, as if the run had not come so far."""
    path = out / output
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (out / ".stamps" / f"{output}.json").unlink(missing_ok=True)


def assert_same_report(outcomes: list[StepOutcome], undisturbed: Path) -> None:
    results = {outcome.step.name: outcome.result for outcome in outcomes}
    assert results["parity"] == json.loads((undisturbed / "parity.json").read_text())
    table = json.loads((undisturbed / "table.json").read_text())
    for row, other in zip(results["table"]["rows"], table["rows"], strict=True):
        assert (row["name"], row["digest"], row["score"]) == (
            other["name"],
            other["digest"],
            other["score"],
        )


def assert_nothing_runs_in(folder: Path) -> None:
    """A server that a killed process has left must stop by itself, and take its files with it."""
    deadline = time.monotonic() + 30
    while (files := list(folder.glob("bertender*"))) or commands_in(folder):
        assert time.monotonic() < deadline, (files, commands_in(folder))
        time.sleep(0.1)


def commands_in(folder: Path) -> list[list[str]]:
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(str(folder) in word for word in line)]
