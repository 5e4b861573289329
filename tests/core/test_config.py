"""Configs: strict about keys and values, frozen, and the same after JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field, ValidationError

from bertender.core.config import Config, Record, Rule
from bertender.core.errors import ConfigError
from bertender.recipes.stage import Stage
from bertender.recipes.stages import STAGES
from bertender.tasks.task import TaskConfig


class Oven(Config):
    """Settings to try things on."""

    bread: str
    heat: float = Field(200.0, gt=0)
    minutes: int = 30
    mode: Literal["fan", "grill"] = "fan"
    shelves: tuple[int, ...] = (1,)
    timer: int | None = None
    weights: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"bread": "rye", "minuts": 3},
            ["minuts: unknown key. Did you mean 'minutes'?", "heat, min"],
        ),
        ({"bread": "rye", "xyzzy": 3}, ["xyzzy: unknown key. Known: bread"]),
        ({}, ["bread: a value is required"]),
        ({"bread": "rye", "heat": -1}, ["heat=-1", "greater than 0"]),
        ({"bread": "rye", "heat": "hot"}, ["heat='hot'", "number"]),
        ({"bread": "rye", "heat": float("nan")}, ["heat=nan", "finite"]),
        ({"bread": "rye", "weights": {"crust": float("inf")}}, ["weights.crust=inf", "finite"]),
        ({"bread": "rye", "mode": "gas"}, ["mode='gas'", "'fan' or 'grill'"]),
        ({"bread": "rye", "shelves": [1, "two"]}, ["shelves.1='two'"]),
        ({"heat": 0, "minutes": 1.5, "fann": 1}, ["bread", "heat=0", "minutes=1.5", "fann"]),
    ],
)
def test_every_problem_is_explained(values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Oven.parse(values)
    assert all(part in str(caught.value) for part in said), str(caught.value)
    assert "Oven" not in str(caught.value), "a user knows settings by their names"


def test_plain_values_become_typed_ones() -> None:
    oven = Oven.parse({"bread": "rye", "heat": "180", "minutes": "45", "shelves": ["2", 3]})
    assert oven == Oven(bread="rye", heat=180.0, minutes=45, shelves=(2, 3))


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Oven(bread="rye").heat = 10


def test_json_and_back() -> None:
    oven = Oven(bread="rye", shelves=(1, 2), weights={"crust": 0.1})
    assert Oven.model_validate_json(oven.model_dump_json()) == oven
    assert Oven.parse(oven.model_dump(mode="json")) == oven


def test_records_refuse_unknown_keys_too() -> None:
    class Loaf(Record):
        grams: int

    with pytest.raises(ValidationError):
        Loaf.model_validate({"grams": 1, "colour": "brown"})


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_configs_of_the_stages(stage: Stage) -> None:
    config = stage.config()
    assert stage.config.model_validate(config.model_dump(mode="json")) == config
    undescribed = [
        name for name, field in stage.config.model_fields.items() if not field.description
    ]
    assert undescribed == [], "the description is the flag's help"
    with pytest.raises(ConfigError, match="no_such_key: unknown key"):
        stage.config.parse({"no_such_key": 1})


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_a_conflict_of_settings_is_a_rule(stage: Stage) -> None:
    """Validators of a whole config fill in defaults, around or before its fields are read."""
    validators = stage.config.__pydantic_decorators__.model_validators.values()
    assert [each.cls_var_name for each in validators if each.info.mode == "after"] == []


class Cake(Oven):
    """An oven with conflicts of settings."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "grill": Rule(
            lambda config: config.mode == "grill",
            "no cake is grilled above {heat:g}. Leave it out, or give --mode fan.",
            frozenset({"minutes", "shelves"}),
            against="mode",
            beyond_default=True,
        ),
        "timer": Rule(
            lambda config: config.mode == "grill",
            "a grill has no timer. Leave it out.",
            frozenset({"timer"}),
        ),
        "cold": Rule(lambda config: config.heat < 100, lambda config: f"{config.bread} stays raw."),
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"mode": "grill", "minutes": 9},
            r"^mode=grill and minutes=9: no cake is grilled above 200\. Leave",
        ),
        ({"mode": "grill", "minutes": 9, "shelves": [2]}, r"and minutes=9, shelves=\(2,\): no"),
        ({"mode": "grill", "timer": 0}, "^timer=0: a grill has no timer"),
        ({"heat": 50}, "^rye stays raw"),
    ],
)
def test_broken_rules_are_found_when_settings_are_read(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Cake.parse({"bread": "rye", **settings})
    with pytest.raises(ConfigError, match=said):
        Cake(bread="rye", **settings).check_rules()


class WeddingCake(Cake):
    """A cake with a conflict of its own, and one that it states anew."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "dry": Rule(lambda config: config.minutes > 100, "it gets dry."),
        "cold": Rule(lambda config: config.heat < 150, "too cold for so much dough."),
    }


def test_rules_come_on_top_of_those_of_the_base() -> None:
    assert list(WeddingCake.all_rules()) == ["grill", "timer", "cold", "dry"]
    for settings, said in (
        ({"mode": "grill", "minutes": 9}, "no cake is grilled"),
        ({"heat": 120}, "too cold"),
        ({"minutes": 101}, "it gets dry"),
    ):
        with pytest.raises(ConfigError, match=said):
            WeddingCake.parse({"bread": "rye", **settings})
    assert Cake.parse({"bread": "rye", "heat": 120}).heat == 120


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mode": "grill"},
        *({"mode": "grill", **own} for own in ({"minutes": 30}, {"timer": None})),
    ],
)
def test_rules_that_hold(settings: dict[str, Any]) -> None:
    assert Cake.parse({"bread": "rye", **settings}).bread == "rye"


def test_changed_settings_are_explicit_and_the_others_are_not() -> None:
    changed = Oven(bread="rye").changed({"heat": "90"})
    assert changed == Oven(bread="rye", heat=90.0)
    assert changed.is_explicit("heat") and not changed.is_explicit("minutes")


def test_a_path_may_name_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = TaskConfig.parse({"train": "~/a.csv", "dev": "~no-user/a.csv", "task": "~/a"})
    assert (found.train, found.dev) == (Path("/home/me/a.csv"), Path("~no-user/a.csv"))
    assert found.task == "~/a"
