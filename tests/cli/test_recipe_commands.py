"""bertender run and bertender recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bertender.cli import making
from bertender.cli.making import show_gain
from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.core.files import save_result
from bertender.recipes.recipe import Step, StepOutcome, save_averages
from bertender.tasks.task import Task
from tests.comparison import rows as measured
from tests.front import fail, last_line, succeed, write_toy_files

STEPS = [
    {"name": "words", "stage": "baseline"},
    {"name": "other", "stage": "baseline", "with": {"seed": 5}},
    {"name": "parity", "stage": "verify", "from": ["words", "words"]},
    {
        "name": "table",
        "stage": "compare",
        "from": ["words", "other"],
        "with": {"processes": 1, "rounds": 2, "single_texts": 2, "batch_size": 2, "threads": 1},
    },
]
TEACHER = {"name": "teacher", "stage": "finetune", "with": {"epochs": 1, "precision": "fp32"}}
PRETRAINED = {"name": "tuned", "stage": "finetune", "from": "teacher", "with": {"epochs": 1}}


@pytest.fixture
def recipe(tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe file, in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    return write_recipe(tmp_path / "mine.yaml", task, STEPS, next=["bertender doctor [x]"])


def write_recipe(path: Path, task: Task, steps: list[Any], **more: Any) -> Path:
    settings = write_toy_files(path.parent, task).task
    path.write_text(yaml.safe_dump({"summary": "s.", "task": settings, "steps": steps, **more}))
    return path


def test_results_go_to_runs_by_default(recipe: Path, tmp_path: Path) -> None:
    result = succeed("run", "mine.yaml")
    assert Artifact.load(tmp_path / "runs" / "mine" / "words").card.stage == "baseline"
    for position, name in enumerate(("words", "other", "parity", "table"), start=1):
        assert f"[{position}/4] {name}" in result.stderr
    assert "words predicts as words does: agreement 1.0000" in result.stdout
    assert "Speedup" in result.stdout
    said, _, commands = result.stdout.partition("Next, for your own data:\n")
    assert said and commands.endswith("  bertender doctor [x]\n")
    again = succeed("run", "mine.yaml").stdout
    assert again.count("unchanged, reused") == 4


def test_a_damaged_table_of_a_run_is_named(tmp_path: Path) -> None:
    (table := tmp_path / "table.json").write_text("{}")
    steps = [
        Step.model_validate({"name": "served", "stage": "endpoint", "from": "words"}),
        Step.model_validate({"name": "table", "stage": "compare", "from": ["teacher", "words"]}),
    ]
    outcomes = [StepOutcome(each, table, reused=True, seconds=0.0, result={}) for each in steps]
    for show in (show_gain, lambda found: save_averages({"a": found}, tmp_path)):
        with pytest.raises(DataError, match=f"{table} is not a saved comparison"):
            show(outcomes)


@pytest.mark.parametrize("name", ["words", "words in ONNX Runtime"])
def test_the_gain_is_that_in_the_runtime_of_the_endpoint(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of several runtimes has a row for each."""
    rows = [
        measured.STUDENT.model_copy(update={"name": own, "runtime": runtime})
        for own, runtime in (("words in OpenVINO", "openvino"), (name, "onnxruntime"))
    ]
    save_result(measured.compared(measured.TEACHER, *rows), table := tmp_path / "table.json")
    steps = [
        Step.model_validate({"name": "served", "stage": "endpoint", "from": "words"}),
        Step.model_validate({"name": "table", "stage": "compare", "from": ["teacher", "words"]}),
    ]
    show_gain([StepOutcome(each, table, reused=True, seconds=0.0, result={}) for each in steps])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"{name} in place of teacher:") and said.count("in place of") == 1


def test_json_tells_what_was_reused(recipe: Path, tmp_path: Path) -> None:
    words = ("run", recipe, "--out", tmp_path / "out", "--json")
    succeed(*words, "--set", "other.longest_ngram=1")
    said = last_line(succeed(*words))
    assert (said["recipe"], said["out"]) == ("mine", str(tmp_path / "out"))
    reused = {step["step"]: step["reused"] for step in said["steps"]}
    assert reused == {"words": True, "other": False, "parity": True, "table": False}
    assert said["steps"][2]["result"]["agreement"] == 1.0
    assert said["steps"][0]["output"] == str(tmp_path / "out" / "words")


def test_fresh(recipe: Path, tmp_path: Path) -> None:
    words = ("run", recipe, "--json")
    succeed(*words)
    assert not any(step["reused"] for step in last_line(succeed(*words, "--fresh"))["steps"])


def test_what_would_continue_a_fresh_run_is_said(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **settings: Any) -> list[StepOutcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(making, "run_recipe", interrupted)
    said = fail("run", recipe, "--fresh", status=130)
    assert "run the same command again, without --fresh, to continue" in said
    assert "--fresh" not in fail("run", recipe, status=130)


def test_set_changes_steps_and_task(recipe: Path, tmp_path: Path) -> None:
    succeed("run", recipe, "--set", "task.max_train=40", "--set", "words.longest_ngram=1")
    card = Artifact.load(tmp_path / "runs" / "mine" / "words").card
    assert card.task.source["max_train"] == 40
    assert card.config["longest_ngram"] == 1


def test_seed_is_for_every_step_and_keeps_seeds_apart(recipe: Path, tmp_path: Path) -> None:
    succeed("run", recipe, "--seed", "3")
    seeds = {n: Artifact.load(tmp_path / "runs" / "mine" / n).card.seed for n in ("words", "other")}
    assert seeds == {"words": 3, "other": 8}


def test_set_wins_over_a_shorthand(recipe: Path, tmp_path: Path) -> None:
    succeed("run", recipe, "--seed", "3", "--set", "other.seed=1")
    assert Artifact.load(tmp_path / "runs" / "mine" / "other").card.seed == 1


def test_teacher_starts_the_step_that_starts_from_nothing(
    recipe: Path, task: Task, teacher: Artifact, tmp_path: Path
) -> None:
    write_recipe(recipe, task, [TEACHER, PRETRAINED])
    odd = tmp_path / "a #1: encoder"  # YAML would read neither this nor a number as a name
    odd.symlink_to(teacher.path)
    succeed("run", recipe, "--teacher", odd)
    run = tmp_path / "runs" / "mine"
    first, second = (Artifact.load(run / name).card for name in ("teacher", "tuned"))
    assert first.config["teacher"] == str(odd)
    assert first.parent and first.parent.digest == teacher.digest
    assert second.parent and second.parent.digest == Artifact.load(run / "teacher").digest


def test_changed_files_of_the_teacher_build_again(
    recipe: Path, task: Task, teacher: Artifact, tmp_path: Path
) -> None:
    write_recipe(recipe, task, [TEACHER])
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (encoder / name).write_bytes((teacher.path / name).read_bytes())
    words = ("run", recipe, "--teacher", encoder, "--json")
    assert [last_line(succeed(*words))["steps"][0]["reused"] for _ in range(2)] == [False, True]
    with (encoder / "config.json").open("a") as config:
        config.write("\n")
    assert not last_line(succeed(*words))["steps"][0]["reused"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--teacher", "x"), "no step of recipe 'mine' starts from an encoder"),
        (("--set", "words"), "write it as step.key=value"),
        (("--set", "wrds.seed=1"), "no step 'wrds'"),
        (("--set", "words.sed=1"), "step 'words' (baseline): .* 'seed'"),
        (("--set", "task.max_trian=1"), "'max_train'"),
        (("--set", "task.train=gone.csv"), "gone.csv"),
        (("--set", "parity.tolerance=int9"), "step 'parity' (verify): .*'int8'"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_what_is_refused_names_the_place(words: tuple[str, ...], said: str, recipe: Path) -> None:
    message = fail("run", recipe, *words)
    missing = [part for part in said.split(".*") if part.strip() not in message]
    assert missing == [], message


def test_a_negative_seed_is_wrong_usage(recipe: Path) -> None:
    assert "--seed" in fail("run", recipe, "--seed", "-1")


def test_recipes_are_listed() -> None:
    assert "quickstart" in succeed("recipes").stdout
