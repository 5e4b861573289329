"""Recipes: what is refused and in which words, settings, and that the embedded ones hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.errors import BertenderError, ConfigError, UnknownNameError
from bertender.recipes.recipe import (
    Recipe,
    Setting,
    Step,
    load_recipe,
    parse_recipe,
    read_setting,
    recipe_names,
)
from bertender.recipes.stages import STAGES
from bertender.tasks.task import TaskConfig

HEAD = "summary: toy\ntask: {task: toy}\nsteps:\n"
TEACHER = "  - {name: teacher, stage: finetune}\n"
EXPORT = "  - {name: onnx, stage: export, from: teacher}\n"
TABLE = "  - {name: table, stage: compare, from: [teacher]}\n"


def step(text: str) -> str:
    return f"{HEAD}{TEACHER}{EXPORT}{TABLE}  - {text}\n"


REFUSED = {
    "not a mapping": ("just text", "must have the keys summary, task and steps"),
    "a key twice": (
        f"{HEAD}  - {{name: a, stage: baseline, with: {{seed: 1, seed: 2}}}}\n",
        "key 'seed' is there twice: .*line 4",
    ),
    "bad YAML": (f"{HEAD}  - {{name: a", "recipe 'mine' is not YAML: .*line 4"),
    "no task": (
        "summary: toy\nsteps: [{name: a, stage: baseline}]",
        "the key `task`, .* or else `tasks`",
    ),
    "no steps": ("summary: toy\ntask: {}\nsteps: []", "key 'steps': .*at least 1 item"),
    "unknown key": (
        f"{HEAD}{TEACHER}sumary: x",
        "key 'sumary': unknown. Did you mean 'summary'.*summary, task, tasks, steps, next",
    ),
    "unknown key of a step": (
        step("{name: int8, stage: quantize, form: onnx}"),
        r"step 4 \(int8\), key 'form': unknown. Did you mean 'from'.*name, stage, from, with",
    ),
    "step without a name": (step("{stage: baseline}"), "step 4, key 'name': this key is missing"),
    "step that is text": (step("baseline"), "step 4: .*'baseline'"),
    "empty with": (step("{name: a, stage: baseline, with: }"), r"step 4 \(a\), key 'with': .*None"),
    "name with a dot": (step("{name: a.b, stage: baseline}"), r"step 4 \(a.b\), key 'name': "),
    "name that leaves the folder": (step("{name: ../a, stage: baseline}"), "key 'name': "),
    "name of the task": (step("{name: task, stage: baseline}"), "'task' is not free"),
    "name twice": (step("{name: onnx, stage: export, from: teacher}"), "'onnx' is not free"),
    "unknown stage": (
        step("{name: a, stage: quantise, from: onnx}"),
        r"no stage \(of step 'a'\) 'quantise'. Did you mean 'quantize'",
    ),
    "unknown source": (
        step("{name: a, stage: quantize, from: onxn}"),
        "no step before 'a' called 'onxn'. Did you mean 'onnx'.*onnx, table, teacher",
    ),
    "its own source": (step("{name: a, stage: export, from: a}"), "no step before 'a' called 'a'"),
    "source that is a report": (
        step("{name: a, stage: export, from: table}"),
        "'a' cannot start from 'table': 'compare' makes a report",
    ),
    "no source": (step("{name: a, stage: export}"), "starts from 1 earlier.*names 0"),
    "one source too many": (
        step("{name: a, stage: finetune, from: [teacher, onnx]}"),
        "starts from 0 to 1 earlier steps.*names 2",
    ),
    "half a comparison": (step("{name: a, stage: verify, from: onnx}"), "from 2 earlier.*names 1"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}") as refused:
        parse_recipe("mine", text)
    assert "pydantic" not in str(refused.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_recipe("mine", step("{name: a, x: 1}") + "y: 2")
    for problem in ("step 4 (a), key 'x'", "step 4 (a), key 'stage'", "key 'y'"):
        assert problem in str(refused.value)


def test_a_bad_step_alone_is_not_a_recipe_without_steps() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_recipe("mine", "summary: toy\ntask: {}\nsteps: [{name: a.b, stage: baseline}]")
    assert "step 1 (a.b), key 'name'" in str(refused.value) and "least 1" not in str(refused.value)


def test_a_recipe_is_read() -> None:
    recipe = parse_recipe("mine", step("{name: int8, stage: quantize, from: [onnx], with: {a: 1}}"))
    assert [s.sources for s in recipe.steps] == [(), ("teacher",), ("teacher",), ("onnx",)]
    assert recipe.steps[3].settings == {"a": 1}


def test_a_single_source_may_be_plain_text() -> None:
    single, many = (
        parse_recipe("mine", step(f"{{name: a, stage: quantize, from: {source}}}"))
        for source in ("onnx", "[onnx]")
    )
    assert single == many


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("student.layers=2", Setting("student", "layers", 2)),
        ("a.b=c=d", Setting("a", "b", "c=d")),
        ("task.max_train=100", Setting("task", "max_train", 100)),
        ("a.b=", Setting("a", "b", None)),
        ('a.b="7"', Setting("a", "b", "7")),
        ("a.b=[1, 3]", Setting("a", "b", [1, 3])),
        ("a.b=false", Setting("a", "b", False)),
    ],
)
def test_a_setting_is_read(text: str, setting: Setting) -> None:
    assert read_setting(text) == setting


@pytest.mark.parametrize("text", ["", "a", "a.b", "a=1", ".b=1", "a.=1", "a.b=@c", "a.b=[1"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        read_setting(text)


def test_settings_change_steps_and_the_task_and_nothing_else() -> None:
    recipe = parse_recipe("mine", step("{name: int8, stage: quantize, from: onnx, with: {a: 1}}"))
    changed = recipe.with_settings(
        [Setting("int8", "b", 0), Setting("task", "max_dev", 5), Setting("int8", "a", False)]
    )
    assert changed.steps[3].settings == {"a": False, "b": 0}
    assert changed.task == {"task": "toy", "max_dev": 5}
    assert changed.steps[:3] == recipe.steps[:3]
    assert recipe.steps[3].settings == {"a": 1}, "the recipe itself stays as it was"


def test_a_setting_of_no_step_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no step 'techer' .*'teacher'.*a, task"):
        parse_recipe("mine", step("{name: a, stage: baseline}")).with_settings(
            [Setting("techer", "epochs", 1)]
        )


def test_a_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(step("{name: a, stage: baseline}"), encoding="utf-8")
    assert load_recipe(str(path)).name == "mine"


@pytest.mark.parametrize("name", ["missing.yaml", "folder.yml", "latin.yaml"])
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.yml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"summary: caf\xe9")
    with pytest.raises(ConfigError, match=f"recipe file .*{name} cannot be read"):
        load_recipe(str(tmp_path / name))


def test_an_unknown_name_has_a_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'sst'. Did you mean 'sst2'"):
        load_recipe("sst")


@pytest.mark.parametrize("name", recipe_names())
def test_an_embedded_recipe_holds(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.summary.endswith(".") and recipe.next
    TaskConfig.parse(recipe.task)
    for each in recipe.steps:
        STAGES[each.stage].config.parse(each.settings)


def test_the_embedded_recipes_prove_and_serve_what_they_make() -> None:
    for recipe in map(load_recipe, recipe_names()):
        stages = [each.stage for each in recipe.steps]
        assert {"baseline", "verify", "compare", "endpoint"} <= set(stages), recipe.name


def test_a_recipe_survives_its_own_dump() -> None:
    recipe = load_recipe("quickstart")
    assert Recipe.model_validate_json(recipe.model_dump_json(by_alias=True)) == recipe
    assert all(isinstance(each, Step) for each in recipe.steps)
    assert issubclass(ConfigError, BertenderError)
