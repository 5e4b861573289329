"""Recipes: named steps, each from earlier ones, and the settings that the user changes in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from bertender.core.config import Record
from bertender.core.errors import ConfigError, UnknownNameError, nearest_hint
from bertender.pipeline.stages import STAGES

__all__ = [
    "Recipe",
    "Setting",
    "Step",
    "load_recipe",
    "parse_recipe",
    "read_setting",
    "recipe_names",
]

TASK_SETTINGS = "task"
"""The name that `--set` uses for the recipe's task; no step may have it."""
RECIPE_ENDINGS = (".yaml", ".yml")


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class Setting(NamedTuple):
    """A setting to change: of the step (or `task`), under the key, to the value."""

    step: str
    key: str
    value: Any


class Step(Record):
    """One step of a recipe."""

    # it names the output, and stands before the dot of --set
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    stage: str
    sources: Annotated[tuple[str, ...], BeforeValidator(_one_or_many)] = Field((), alias="from")
    settings: dict[str, Any] = Field(default_factory=dict, alias="with")


class Recipe(Record):
    """Steps that `bertender run` runs."""

    name: str
    summary: str
    task: dict[str, Any]
    steps: tuple[Step, ...] = Field(min_length=1)
    next: tuple[str, ...] = Field((), description="commands to show at the end")

    def with_settings(self, changes: Iterable[Setting]) -> Recipe:
        """Return the recipe with some settings changed; whether a key exists shows when it runs.

        Raises:
            ConfigError: a change is for a step that the recipe does not have.
        """
        values = self.model_dump(by_alias=True)
        settings = {step["name"]: step["with"] for step in values["steps"]}
        settings[TASK_SETTINGS] = values["task"]
        for change in changes:
            if change.step not in settings:
                raise ConfigError(
                    f"no step {change.step!r} in recipe {self.name!r} to set {change.key!r} of."
                    f"{nearest_hint(change.step, settings)} Steps: {', '.join(settings)}."
                )
            settings[change.step][change.key] = change.value
        return Recipe.model_validate(values)


def read_setting(text: str) -> Setting:
    """Read `step.key=value`; the value is YAML.

    Raises:
        ConfigError: it is not of that form.
    """
    place, equals, value = text.partition("=")
    step, dot, key = place.partition(".")
    if not (equals and dot and step and key):
        raise ConfigError(f"--set {text!r}: write it as step.key=value.")
    try:
        return Setting(step, key, yaml.safe_load(value))
    except yaml.YAMLError:
        raise ConfigError(
            f"--set {text!r}: the value {value!r} cannot be read as YAML. Put it in quotes, as in "
            f"--set '{place}=\"...\"'."
        ) from None


def recipe_names() -> dict[str, str]:
    """Return the embedded recipes, name and summary."""
    return {name: yaml.safe_load(text)["summary"] for name, text in sorted(_embedded().items())}


def load_recipe(name: str) -> Recipe:
    """Read an embedded recipe by name, or a YAML file by path.

    Raises:
        UnknownNameError: there is no such recipe.
        ConfigError: there is no such file, or it is not a recipe; every problem is named.
    """
    if name.endswith(RECIPE_ENDINGS):
        return parse_recipe(Path(name).stem, _read(Path(name)))
    embedded = _embedded()
    if name not in embedded:
        raise UnknownNameError("recipe (nor .yaml file)", name, embedded)
    return parse_recipe(name, embedded[name])


def parse_recipe(name: str, text: str) -> Recipe:
    """Build a recipe from YAML and check that its steps fit together.

    Raises:
        ConfigError: it is not a recipe, or a step cannot start from the steps that it names.
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"recipe {name!r} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {name!r} must have the keys summary, task and steps.")
    try:
        recipe = Recipe.model_validate({"name": name, **values})
    except ValidationError as error:
        problems = "; ".join(_explain(problem, values) for problem in error.errors())
        raise ConfigError(f"recipe {name!r}: {problems}") from None
    _check_steps(recipe)
    return recipe


def _check_steps(recipe: Recipe) -> None:
    """Raise ConfigError unless each step can start from the steps that it names."""
    earlier: dict[str, Step] = {}
    for step in recipe.steps:
        if step.name in earlier or step.name == TASK_SETTINGS:
            raise ConfigError(f"recipe {recipe.name!r}: {step.name!r} is not free to name a step.")
        if step.stage not in STAGES:
            raise UnknownNameError(f"stage (of step {step.name!r})", step.stage, STAGES)
        for source in step.sources:
            if source not in earlier:
                raise UnknownNameError(f"step before {step.name!r} called", source, earlier)
            if STAGES[earlier[source].stage].suffix:
                raise ConfigError(
                    f"step {step.name!r} cannot start from {source!r}: {earlier[source].stage!r} "
                    "makes a report, not a model."
                )
        _check_count(step, STAGES[step.stage].sources)
        earlier[step.name] = step


def _check_count(step: Step, allowed: Sequence[int]) -> None:
    if len(step.sources) not in allowed:
        most = f" to {allowed[-1]}" if len(allowed) > 1 else ""
        raise ConfigError(
            f"step {step.name!r}: a step of stage {step.stage!r} starts from {allowed[0]}{most} "
            f"earlier steps, and `from` names {len(step.sources)}."
        )


def _explain(problem: Any, values: Mapping[str, Any]) -> str:
    """Return what is wrong where in a recipe, by the names that its author wrote."""
    places, key = list(problem["loc"]), problem["loc"][-1]
    owner = Step if places[0] == "steps" and len(places) > 1 else Recipe
    known = [field.alias or name for name, field in owner.model_fields.items()]
    explanations = {
        "extra_forbidden": f"unknown.{nearest_hint(str(key), known)} Known: {', '.join(known)}",
        "missing": "this key is missing",
    }
    default = f"{problem['msg']} (it is {problem['input']!r})"
    where = ", ".join(_places(places, values))
    return f"{where}: {explanations.get(problem['type'], default)}"


def _places(places: Sequence[int | str], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the way to a problem: `step 2 (student)`, `key 'with'`."""
    if places[0] == "steps" and len(places) > 1:
        number = int(places[1])
        step = values["steps"][number]
        name = step.get("name") if isinstance(step, dict) else None
        yield f"step {number + 1} ({name})" if name else f"step {number + 1}"
        places = places[2:]
    if places:
        yield f"key {'.'.join(map(str, places))!r}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"recipe file {path} cannot be read: {error}. `bertender recipes` lists the embedded "
            "ones."
        ) from None


def _embedded() -> Mapping[str, str]:
    folder = resources.files("bertender.pipeline.recipes")
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    }
