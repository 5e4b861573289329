"""Running recipes: what is reused, what is built again, and errors that name the step."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertender.core.artifact import Artifact
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    ConfigError,
    DataError,
    ParityError,
    ServerMissingError,
    UnknownNameError,
)
from bertender.core.machine import environment
from bertender.recipes import recipe as runner
from bertender.recipes import stage as stages
from bertender.recipes.recipe import Recipe, Setting, Step, parse_recipe, run_recipe
from bertender.recipes.stage import Stage
from bertender.recipes.stages import STAGES, Verify
from bertender.tasks.named import TASKS
from bertender.tasks.task import Split, Task
from quantize import integers
from quantize.config import QuantizeConfig
from serve.server.wheels import why_not_here
from tests.front import ToyFiles, write_csv, write_toy_files
from tests.toy_models import save_encoder
from tests.toys import ToyNamedTask, three_kinds

TIMING = {
    "processes": 1,
    "rounds": 2,
    "single_texts": 2,
    "batch_size": 2,
    "warmup_rounds": 0,
    "threads": 1,
}
STEPS_HERE = (
    {"name": "first", "stage": "baseline", "with": {"longest_ngram": 1}},
    {"name": "second", "stage": "baseline"},
    {"name": "parity", "stage": "verify", "from": ["first", "first"]},
    {"name": "table", "stage": "compare", "from": ["second", "first"], "with": TIMING},
)
"""Steps that take milliseconds. Those that train are below, in test_kill and test_quickstart."""


@pytest.fixture
def files(tmp_path: Path, task: Task) -> ToyFiles:
    return write_toy_files(tmp_path, task)


@pytest.fixture
def recipe(files: ToyFiles) -> Recipe:
    return recipe_over(files)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    recipe = recipe_over(write_toy_files(folder, task))
    assert built(recipe, folder / "run") == ["first", "second", "parity", "table"]
    return folder / "run"


@pytest.fixture
def out(complete: Path, tmp_path: Path) -> Path:
    """The folder of a run that is complete; where it and its data lie does not matter."""
    return shutil.copytree(complete, tmp_path / "run")


def recipe_over(files: ToyFiles) -> Recipe:
    text = yaml.safe_dump({"summary": "toy", "task": files.task, "steps": list(STEPS_HERE)})
    return parse_recipe("toy", text)


def built(recipe: Recipe, out: Path, **settings: Any) -> list[str]:
    """Run the recipe; return the steps that were not reused."""
    return [o.step.name for o in run_recipe(recipe, out, **settings) if not o.reused]


def test_the_second_run_reuses_everything(recipe: Recipe, out: Path) -> None:
    outcomes = list(run_recipe(recipe, out))
    assert [outcome.reused for outcome in outcomes] == [True] * 4
    assert [outcome.output for outcome in outcomes] == [
        out / name for name in ("first", "second", "parity.json", "table.json")
    ]
    assert outcomes[0].result["stage"] == "baseline"
    assert outcomes[3].result == json.loads((out / "table.json").read_text())
    assert {path.name for path in out.iterdir()} == {o.output.name for o in outcomes} | {".stamps"}


def test_an_artifact_that_no_recipe_has_made_stays(recipe: Recipe, out: Path) -> None:
    shutil.rmtree(out / ".stamps")
    with pytest.raises(ArtifactError, match=r"step 'first'.*a finished artifact.*--force"):
        built(recipe, out, fresh=True)
    assert built(recipe, out, force=True) == ["first", "second", "parity", "table"]


def test_a_step_that_failed_still_knows_its_output(
    recipe: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = recipe.with_settings([Setting("first", "longest_ngram", 2)])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Stage, "run", interrupted)
        built(changed, out)
    assert "first" in built(changed, out)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_fresh_builds_everything(recipe: Recipe, out: Path) -> None:
    assert built(recipe, out, fresh=True) == ["first", "second", "parity", "table"]


@pytest.mark.parametrize(
    ("setting", "again"),
    [
        (Setting("first", "longest_ngram", 2), ["first", "parity", "table"]),
        (Setting("second", "longest_ngram", 1), ["second", "table"]),
        (Setting("parity", "texts", 9), ["parity"]),
        (Setting("table", "seed", 4), ["table"]),
        (Setting("task", "max_dev", 9), ["first", "second", "parity", "table"]),
    ],
    ids=lambda value: f"{value.step}.{value.key}" if isinstance(value, Setting) else "",
)
def test_a_setting_builds_its_step_and_those_after_it(
    setting: Setting, again: list[str], recipe: Recipe, out: Path
) -> None:
    changed = recipe.with_settings([setting])
    assert built(changed, out) == again
    assert built(changed, out) == []


def test_a_default_that_is_set_explicitly_builds_again(recipe: Recipe, out: Path) -> None:
    """Other settings may replace a default that is not: freeze=encoder the learning rate, and
    scheme=auto the calibrator."""
    changed = recipe.with_settings([Setting("second", "longest_ngram", 2)])
    assert built(changed, out) == ["second"]
    assert built(changed, out) == []
    assert built(recipe, out) == ["second"]


def test_a_setting_that_changes_no_model_stops_there(recipe: Recipe, out: Path) -> None:
    """The seed of the solver does not matter to this solver: same weights, same digest."""
    assert built(recipe.with_settings([Setting("first", "seed", 7)]), out) == ["first"]


def test_names_of_sources_count(recipe: Recipe, out: Path) -> None:
    """A comparison shows the names of its rows, so it is made again when they are others."""
    text = recipe.model_dump_json(by_alias=True).replace('"first"', '"renamed"')
    assert built(Recipe.model_validate_json(text), out) == ["renamed", "parity", "table"]


def test_changed_data_build_everything(recipe: Recipe, out: Path, task: Task) -> None:
    train = Path(recipe.task["train"])
    write_csv(train, Split(task.train.examples[2:], task.train.label_ids[2:]), task.labels)
    assert built(recipe, out) == ["first", "second", "parity", "table"]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def damage(path: Path) -> None:
    file = path / "model.safetensors" if path.is_dir() else path
    file.write_bytes(file.read_bytes()[:-9])


def damage_card(path: Path) -> None:
    file = path / "artifact.json" if path.is_dir() else path
    file.write_bytes(b"{")


def test_an_output_without_a_readable_card_stays(recipe: Recipe, out: Path) -> None:
    damage_card(out / "first")
    with pytest.raises(ArtifactError, match=r"first holds files.*artifact\.json cannot be read"):
        built(recipe, out)
    shutil.rmtree(out / "first")
    assert built(recipe, out) == ["first"]


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        *itertools.product([remove, damage], ["first", "second", "parity.json", "table.json"]),
        (damage_card, "parity.json"),
    ],
)
def test_a_harmed_output_is_built_again(
    harm: Callable[[Path], None], name: str, recipe: Recipe, out: Path
) -> None:
    before = {path.name: Artifact.load(path).digest for path in (out / "first", out / "second")}
    harm(out / name)
    assert built(recipe, out) == [name.removesuffix(".json")], "what is after it is still right"
    after = {path.name: Artifact.load(path).digest for path in (out / "first", out / "second")}
    assert before == after


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": "other"}'])
def test_a_stamp_that_does_not_hold_builds_again(content: str, recipe: Recipe, out: Path) -> None:
    (out / ".stamps" / "second.json").write_text(content)
    assert built(recipe, out) == ["second"]


def test_another_version_of_a_library_or_of_bertender_builds_again(
    recipe: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "library_versions", lambda: {"bertender": "0"})
    assert built(recipe, out) == ["first", "second", "parity", "table"]


def test_what_another_machine_has_measured_is_measured_again(
    recipe: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also integers that suit another CPU are written again."""
    there = environment().model_copy(update={"cpu_model": "another", "cpu_flags": ("avx2",)})
    before = STAGES["quantize"].machine(QuantizeConfig(target="vnni"))
    monkeypatch.setattr(stages, "environment", lambda: there)
    assert built(recipe, out) == ["parity", "table"]
    monkeypatch.setattr(integers, "environment", lambda: there)
    quantize = STAGES["quantize"].machine
    assert quantize(QuantizeConfig()) != before == quantize(QuantizeConfig(target="vnni"))


def test_a_step_that_checks_the_moment_always_runs(
    recipe: Recipe, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verify, "cacheable", False)
    assert built(recipe, out) == ["parity"]
    assert not STAGES["endpoint"].cacheable, "a server that started yesterday proves nothing today"


def test_steps_are_announced_before_they_run(recipe: Recipe, tmp_path: Path) -> None:
    order: list[str] = []

    def announce(step: Step, position: int, steps: int) -> None:
        order.append(f"{position} of {steps} {step.name}")

    for outcome in run_recipe(recipe, tmp_path / "run", at_step=announce):
        order.append(f"done {outcome.step.name}")
    assert order[:4] == ["1 of 4 first", "done first", "2 of 4 second", "done second"]


@pytest.mark.parametrize(
    ("setting", "kind", "said"),
    [
        (
            Setting("table", "roundz", 1),
            ConfigError,
            "step 'table' .*roundz: .*mean 'rounds'",
        ),
        (Setting("second", "longest_ngram", 0), ConfigError, r"step 'second' \(baseline\): .*=0"),
        (Setting("task", "tsk", 1), ConfigError, "tsk: unknown key. Did you mean 'task'"),
        (Setting("task", "train", "/gone.csv"), DataError, "/gone.csv"),
        (Setting("parity", "tolerance", "int9"), UnknownNameError, "step 'parity' .*'int8'"),
    ],
    ids=lambda value: f"{value.step}.{value.key}" if isinstance(value, Setting) else "",
)
def test_errors_name_the_step(
    setting: Setting, kind: type[BertenderError], said: str, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=said):
        list(run_recipe(recipe.with_settings([setting]), tmp_path / "run"))


@pytest.mark.skipif(why_not_here() is not None, reason="Triton is not the default server here")
def test_a_server_that_does_not_run_here_is_found_before_the_first_step(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_shell() -> None:
        raise ServerMissingError("no shell")

    monkeypatch.setattr("serve.server.installation._shell", no_shell)
    endpoint = Step.model_validate({"name": "endpoint", "stage": "endpoint", "from": "second"})
    changed = recipe.model_copy(update={"steps": (*recipe.steps, endpoint)})
    with pytest.raises(ServerMissingError, match=r"step 'endpoint' .*no shell"):
        list(run_recipe(changed, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_fresh_drops_what_an_interrupted_step_has_left(
    recipe: Recipe, out: Path, fresh: bool
) -> None:
    (out / ".first.work" / "identity").mkdir(parents=True)
    list(run_recipe(recipe, out, fresh=fresh))
    assert (out / ".first.work").exists() is not fresh


def test_a_step_that_fails_leaves_those_before_it(recipe: Recipe, tmp_path: Path) -> None:
    text = recipe.model_dump_json(by_alias=True).replace('"first","first"', '"first","second"')
    changed = Recipe.model_validate_json(text)
    with pytest.raises(ParityError, match="step 'parity'"):
        list(run_recipe(changed, tmp_path / "run"))
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"first", "second", "parity.json", ".stamps"}, "what failed is to be read"
    assert built(recipe, tmp_path / "run") == ["parity", "table"]


def test_what_no_stage_wrote_is_not_replaced(recipe: Recipe, out: Path) -> None:
    shutil.rmtree(out / "first")
    (out / "first").mkdir()
    (out / "first" / "thesis.txt").write_text("the only copy")
    with pytest.raises(BertenderError, match=r"step 'first' .*will not be replaced"):
        list(run_recipe(recipe, out))
    assert (out / "first" / "thesis.txt").exists()


def test_nothing_runs_until_asked(recipe: Recipe, tmp_path: Path) -> None:
    running: Iterator[Any] = run_recipe(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert next(running).step.name == "first"
    assert not (tmp_path / "run" / "second").exists()


BRIEF = {"epochs": 1, "precision": "fp32", "allow_constant": True}
TRAINING = {**BRIEF, "learning_rate": 3e-3, "more_tasks": "kinds"}


def named(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    """Put a task among those with a name."""
    monkeypatch.setitem(TASKS, task.name, ToyNamedTask.of(task))


@pytest.fixture
def of_two_tasks(files: ToyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe of one step, which writes `teacher` and `teacher-kinds`."""
    named(monkeypatch, three_kinds(30))
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    settings = {**TRAINING, "teacher": encoder}
    step = {"name": "teacher", "stage": "finetune", "with": settings}
    text = yaml.safe_dump({"summary": "toy", "task": files.task, "steps": [step]})
    return parse_recipe("two-tasks", text)


@pytest.mark.parametrize("harm", [remove, damage])
def test_a_harmed_sibling_is_built_again(
    harm: Callable[[Path], None], of_two_tasks: Recipe, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert built(of_two_tasks, out) == ["teacher"]
    before = Artifact.load(out / "teacher-kinds").digest
    assert built(of_two_tasks, out) == []
    harm(out / "teacher-kinds")
    assert built(of_two_tasks, out) == ["teacher"]
    assert Artifact.load(out / "teacher-kinds").digest == before
    assert {path.name for path in out.iterdir()} == {"teacher", "teacher-kinds", ".stamps"}


def test_changed_data_of_another_task_build_again(
    of_two_tasks: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built(of_two_tasks, tmp_path / "run") == ["teacher"]
    named(monkeypatch, three_kinds(33))
    assert built(of_two_tasks, tmp_path / "run") == ["teacher"]


def test_changed_texts_without_labels_build_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, three_kinds(30))
    row = TASKS["kinds"]
    monkeypatch.setitem(TASKS, "kinds", replace(row, texts=(("one",),)))
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    student = {**BRIEF, "method": "distilbert", "unlabelled_texts": 2}
    steps = [
        {"name": "teacher", "stage": "finetune", "with": {**BRIEF, "teacher": encoder}},
        {"name": "student", "stage": "distill", "from": ["teacher"], "with": student},
    ]
    text = yaml.safe_dump({"summary": "toy", "task": {"task": "kinds"}, "steps": steps})
    recipe = parse_recipe("with-texts", text)
    assert built(recipe, tmp_path / "run") == ["teacher", "student"]
    assert built(recipe, tmp_path / "run") == []
    monkeypatch.setitem(TASKS, "kinds", replace(row, texts=(("other",),)))
    assert built(recipe, tmp_path / "run") == ["student"]


def test_a_step_where_another_writes_a_sibling_is_refused(
    of_two_tasks: Recipe, tmp_path: Path
) -> None:
    other = Step.model_validate({"name": "teacher-kinds", "stage": "baseline"})
    changed = of_two_tasks.model_copy(update={"steps": (*of_two_tasks.steps, other)})
    said = "steps 'teacher' and 'teacher-kinds' would both write teacher-kinds: .*Rename one"
    with pytest.raises(ConfigError, match=said):
        list(run_recipe(changed, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_step_is_reused_from_another_folder(
    files: ToyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings name a file by another path, and the file is the same."""
    shape = {"layers": 1, "hidden_size": 8, "heads": 2, "vocabulary_size": 100, "epochs": 1}
    (tmp_path / "below").mkdir()
    for folder, corpus in ((tmp_path, ""), (tmp_path / "below", "../")):
        monkeypatch.chdir(folder)
        name = corpus + files.corpus.name
        steps = [{"name": "small", "stage": "pretrain", "with": {**shape, "corpus": name}}]
        text = yaml.safe_dump({"summary": "toy", "task": files.task, "steps": steps})
        again = built(parse_recipe("toy", text), tmp_path / "run")
        assert again == (["small"] if folder == tmp_path else [])
    with files.corpus.open("a", encoding="utf-8") as corpus_file:
        corpus_file.write("\none more line")
    assert built(parse_recipe("toy", text), tmp_path / "run") == ["small"]
