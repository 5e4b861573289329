"""Recipes: named steps, each from earlier ones; read, checked, and run once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from bertender.core.artifact import Artifact, check_not_finished, digest_of
from bertender.core.build_once import build_once, forget_work, was_built
from bertender.core.card import library_versions
from bertender.core.config import Config, Record
from bertender.core.errors import BertenderError, ConfigError, UnknownNameError, nearest_hint
from bertender.core.files import unusable_parent
from bertender.recipes.stage import Earlier, Product, Source
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig

if TYPE_CHECKING:
    from bertender.models.own_models import ExpectedModel

# --- from bertender.pipeline.recipe
# Recipes: named steps, each from earlier ones, and the settings that the user changes in them.

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
    folder = resources.files("bertender.recipes")
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    }


# --- from bertender.pipeline.plan
# Checking a recipe before its first step runs.
#
# The settings of all steps; what each step starts from, as far as the earlier step's settings
# show;
# the files that settings name; what the machine must have; and that no step writes over another's
# output. So no step that trains for hours is followed by one that was bound to fail.


class Planned(NamedTuple):
    """A step and its settings."""

    step: Step
    config: Config


def make_plan(recipe: Recipe, out: Path) -> list[Planned]:
    """Return the steps with their settings, checked.

    Args:
        recipe: its steps are known to name earlier steps only.
        out: directory that gets their outputs.

    Raises:
        BertenderError: what is wrong, after the name of the step.
    """
    if nearest := unusable_parent(out / recipe.steps[0].name):
        raise ConfigError(
            f"--out {out} cannot be written: {nearest} is not a folder that this user may write "
            "to. Give another one."
        )
    plan = [Planned(step, _config(step)) for step in recipe.steps]
    _check_outputs_distinct(plan, out)
    _check_sources(plan, out)
    _check_files(plan, out.resolve())
    return plan


def check_task(plan: Sequence[Planned], out: Path, task: Task) -> None:
    """Raise a BertenderError where a step's settings and sources do not go together, or not with
    the task."""
    for step, config in plan:
        with naming(step):
            STAGES[step.stage].accepts(task)
            STAGES[step.stage].check(_filled(step, config, out), task)


def outputs_of(step: Step, config: Config, out: Path) -> list[Path]:
    """Return all that a step writes, its own output first."""
    stage = STAGES[step.stage]
    output = out / (step.name + stage.suffix)
    return [output, *stage.also_writes(config, output)]


@contextmanager
def naming(step: Step) -> Iterator[None]:
    """Put the step's name before the message of an error."""
    try:
        yield
    except BertenderError as error:
        error.args = (f"step {step.name!r} ({step.stage}): {error}",)
        raise


def _config(step: Step) -> Config:
    with naming(step):
        STAGES[step.stage].requires()
        return STAGES[step.stage].config.parse(step.settings)


def _filled(step: Step, config: Config, out: Path) -> Config:
    """Return the config with the settings that earlier steps stand for."""
    return STAGES[step.stage].filled(config, [Source(name, out / name) for name in step.sources])


def _check_outputs_distinct(plan: Sequence[Planned], out: Path) -> None:
    """Raise ConfigError where a step would write over what another step has made."""
    writers: dict[Path, str] = {}
    for step, config in plan:
        for output in outputs_of(step, config, out.resolve()):
            if writers.setdefault(output, step.name) != step.name:
                raise ConfigError(
                    f"steps {writers[output]!r} and {step.name!r} would both write {output.name}: "
                    "a step of several tasks writes one artifact more for each. Rename one step."
                )


def _check_sources(plan: Sequence[Planned], out: Path) -> None:
    """Raise a BertenderError where a step would start from what it cannot use."""
    products: dict[str, Product] = {}
    by_path: dict[Path, ExpectedModel | None] = {}
    for step, config in plan:
        stage = STAGES[step.stage]
        with naming(step):
            for position, source in enumerate(step.sources):
                stage.check_source(config, position, source, products[source])
            if stage.suffix:
                continue
            earlier = Earlier([products[source].model for source in step.sources], by_path)
            model = stage.model(_filled(step, config, out), earlier)
        products[step.name] = replace(stage.makes(config), model=model)
        by_path.update(dict.fromkeys(outputs_of(step, config, out.resolve()), model))


def _check_files(plan: Sequence[Planned], out: Path) -> None:
    """Raise a BertenderError where a setting names a missing path that no step will make."""
    made: set[Path] = set()
    for step, config in plan:
        with naming(step):
            for each in STAGES[step.stage].files(_filled(step, config, out)):
                if each.path is None or each.path.resolve() not in made:
                    each.check()
        made.update(outputs_of(step, config, out))


# --- from bertender.pipeline.runner
# Running a recipe: what is built already is not built again.
#
# A step is skipped when its stamp shows that the same stage, config, inputs, data and code have
# made the output that is there. A step that was killed has left no stamp and no half-written
# output; a training step resumes from its last checkpoint.


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step."""

    step: Step
    output: Path
    reused: bool
    seconds: float
    result: dict[str, Any]


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    fresh: bool = False,
    force: bool = False,
    at_step: Callable[[Step, int], None] = lambda step, position: None,
) -> Iterator[StepOutcome]:
    """Run the steps in order, yielding what became of each.

    Args:
        recipe: what to run.
        out: directory that gets an artifact, or a JSON file, for each step.
        fresh: build every step again.
        force: replace finished artifacts that no run of a recipe has made there.
        at_step: called before each step.

    Raises:
        BertenderError: whatever a step raises, with the step's name before the message. What
            `plan` checks is raised before the first step runs.
    """
    plan = make_plan(recipe, out)
    for step, config in plan:
        outputs = outputs_of(step, config, out)
        if not STAGES[step.stage].suffix and not was_built(outputs[0]):
            with naming(step):
                for place in outputs:
                    check_not_finished(place, force)
    task = load_task(TaskConfig.parse(recipe.task))
    check_task(plan, out, task)
    done: dict[str, Artifact] = {}
    for position, (step, config) in enumerate(plan):
        at_step(step, position)
        with naming(step):
            outcome = run_step(step, config, task, done, out, fresh)
            if not STAGES[step.stage].suffix:
                done[step.name] = Artifact.load(outcome.output, verify=False)
        yield outcome


def run_step(
    step: Step,
    config: Config,
    task: Task,
    done: Mapping[str, Artifact],
    out: Path,
    fresh: bool = False,
) -> StepOutcome:
    """Run a step unless its output is there already.

    Args:
        step: what to run.
        config: its settings, read.
        task: whose texts it reads.
        done: the artifacts that it may start from, by the names that the step has for them.
        out: directory that gets its output.
        fresh: run it in any case.
    """
    started = time.monotonic()
    stage = STAGES[step.stage]
    outputs = outputs_of(step, config, out)
    sources = [done[name] for name in step.sources]

    def build() -> None:
        if fresh:
            forget_work(outputs[0])
        stage.run(sources, task, config, outputs[0])

    identity = _identity(step, config, sources, task)
    anew = fresh or not stage.cacheable
    reused = build_once(outputs, identity, build, digest_of, fresh=anew)
    seconds = time.monotonic() - started
    return StepOutcome(step, outputs[0], reused, seconds, stage.result(outputs[0]))


def _parity(source: Artifact) -> dict[str, Any] | None:
    parity = source.card.findings.parity
    return None if parity is None else parity.model_dump(mode="json")


def _identity(
    step: Step, config: Config, sources: Sequence[Artifact], task: Task
) -> dict[str, Any]:
    """Return everything that shapes a step's output."""
    stage = STAGES[step.stage]
    return {
        "stage": step.stage,
        "config": config.model_dump(mode="json"),
        "files": stage.files_digest(config),
        "texts": stage.texts_digest(config, task),
        # a comparison shows names and parity of its sources, which their digests leave out
        "sources": [(s.name, s.digest, _parity(s)) for s in sources],
        "task": task.fingerprint() if stage.needs_task else None,
        "libraries": library_versions(),
    }
