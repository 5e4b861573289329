"""Recipes: named steps, each from earlier ones; read, checked as a whole, and run once.

Settings, files and the machine are checked before the first step runs, so that no step fails
predictably after hours of training. A step is reused if its stamp has the same stage, config,
inputs, data and library versions, including bertender's; a step that measures, the same machine
too. A killed step leaves no stamp and no half-written output; training resumes from its last
checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from bertender.comparison.records import read_comparison
from bertender.core.artifact import Artifact, check_not_finished, digest_of
from bertender.core.build_once import build_once, forget_work, was_built
from bertender.core.card import library_versions
from bertender.core.config import Config, Record, problems_of
from bertender.core.errors import BertenderError, ConfigError, UnknownNameError, nearest_hint
from bertender.core.files import check_parent, save_result
from bertender.recipes.stage import Earlier, Product, Source, Stage
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.named import TASKS
from bertender.tasks.task import Task, TaskConfig

if TYPE_CHECKING:  # slow imports
    from bertender.comparison.averages import Averages
    from bertender.models.own_models import ExpectedModel

logger = logging.getLogger(__name__)

TASK_SETTINGS = "task"
"""Name of the recipe's task in `--set`; no step may have it."""
RECIPE_ENDINGS = (".yaml", ".yml")


class Setting(NamedTuple):
    """A setting to change: step (or `task`), key and value."""

    step: str
    key: str
    value: Any


class Step(Record):
    """A step of a recipe."""

    # it names the output, and precedes the dot in --set
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    stage: str
    sources: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = Field((), alias="from")
    settings: dict[str, Any] = Field(default_factory=dict, alias="with")


class Recipe(Record):
    """Steps to run with `bertender run`."""

    name: str
    summary: str
    task: dict[str, Any] = Field(default_factory=dict)
    tasks: tuple[str, ...] = Field((), description="named tasks; the steps run once for each")
    steps: tuple[Step, ...] = Field(min_length=1)
    next: tuple[str, ...] = Field((), description="commands to show at the end")

    def of_tasks(self, names: Sequence[str] = ()) -> dict[str, Recipe]:
        """Return the recipe of each task by the task's name, or only this recipe under the name "".

        Args:
            names: names of tasks; by default the recipe's own.

        Raises:
            UnknownNameError: there is no such task.
            ConfigError: a task is named twice.
        """
        wanted = names or self.tasks
        for name in wanted:
            if name not in TASKS:
                raise UnknownNameError("task", name, TASKS, setting="tasks")
            if wanted.count(name) > 1:
                raise ConfigError(f"tasks: {name!r} is named twice among {', '.join(wanted)}.")
            for further in TASKS[name].scored_too:
                if further in wanted:
                    raise ConfigError(
                        f"tasks: the models of {name!r} are scored on {further!r} as well, with a "
                        f"column of its own. Leave {further!r} out."
                    )
        of_each = {name: {**self.task, "task": name} for name in wanted} or {"": self.task}
        return {name: self.model_copy(update={"task": own}) for name, own in of_each.items()}

    def with_settings(self, changes: Iterable[Setting]) -> Recipe:
        """Return the recipe with some settings changed; unknown keys are found when it runs.

        Raises:
            ConfigError: a change names a step that the recipe does not have.
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
        ConfigError: the text does not have this form.
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
    """Return name and summary of the embedded recipes."""
    return {name: yaml.safe_load(text)["summary"] for name, text in sorted(_embedded().items())}


def _embedded() -> Mapping[str, str]:
    files = Path(__file__).parent.glob("*.yaml")
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def load_recipe(name: str) -> Recipe:
    """Read an embedded recipe by name, or a YAML file by path.

    Raises:
        UnknownNameError: there is no such recipe.
        ConfigError: there is no such file, or it is not a recipe; the message has every problem.
    """
    if not name.endswith(RECIPE_ENDINGS):
        embedded = _embedded()
        if name not in embedded:
            raise UnknownNameError("recipe (nor .yaml file)", name, embedded)
        return parse_recipe(name, embedded[name])
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"recipe file {name} cannot be read: {error}. `bertender recipes` lists the embedded "
            "ones."
        ) from None
    return parse_recipe(Path(name).stem, text)


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key that is there twice, of which YAML would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key.value!r} is there twice: leave one out",
                    problem_mark=key.start_mark,
                )
        return super().construct_mapping(node, deep)


def parse_recipe(name: str, text: str) -> Recipe:
    """Build a recipe from YAML and check that its steps fit together.

    Raises:
        ConfigError: the text is not a recipe, or a step cannot start from its named steps.
    """
    try:
        values = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"recipe {name!r} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {name!r} must have the keys summary, task and steps.")
    try:
        recipe = Recipe.model_validate({"name": name, **values})
    except ValidationError as error:
        problems = "; ".join(_explain(problem, values) for problem in problems_of(error))
        raise ConfigError(f"recipe {name!r}: {problems}") from None
    if ("task" in values) == ("tasks" in values):
        raise ConfigError(
            f"recipe {name!r}: give the key `task`, the settings of one, or else `tasks`, a list "
            "of named ones."
        )
    earlier: dict[str, Step] = {}
    for step in recipe.steps:
        if step.name in earlier or step.name == TASK_SETTINGS:
            raise ConfigError(f"recipe {name!r}: {step.name!r} is not free to name a step.")
        _check_sources(step, earlier)
        earlier[step.name] = step
    return recipe


def _check_sources(step: Step, earlier: Mapping[str, Step]) -> None:
    """Raise ConfigError if a step cannot start from the earlier steps that it names."""
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
    allowed = STAGES[step.stage].sources
    if len(step.sources) not in allowed:
        most = f" to {allowed[-1]}" if len(allowed) > 1 else ""
        raise ConfigError(
            f"step {step.name!r}: a step of stage {step.stage!r} starts from {allowed[0]}{most} "
            f"earlier steps, and `from` names {len(step.sources)}."
        )


def _explain(problem: Any, values: Mapping[str, Any]) -> str:
    """Return the place and the problem in a recipe, by the names that its author wrote."""
    places, key = [*problem["loc"]], problem["loc"][-1]
    owner: type[Record] = Recipe
    where = []
    if places[0] == "steps" and len(places) > 1:  # in a step: `step 2 (student)`
        owner, step = Step, values["steps"][places[1]]
        name = step.get("name") if isinstance(step, dict) else None
        where.append(f"step {places[1] + 1}" + (f" ({name})" if name else ""))
        places = places[2:]
    if places:
        where.append(f"key {'.'.join(map(str, places))!r}")
    known = [field.alias or name for name, field in owner.model_fields.items()]
    explanations = {
        "extra_forbidden": f"unknown.{nearest_hint(str(key), known)} Known: {', '.join(known)}",
        "missing": "this key is missing",
    }
    default = f"{problem['msg']} (it is {problem['input']!r})"
    return f"{', '.join(where)}: {explanations.get(problem['type'], default)}"


@dataclass(frozen=True)
class PlannedStep:
    """A step, its settings, and its output folder."""

    step: Step
    config: Config
    out: Path

    @property
    def stage(self) -> Stage:
        return STAGES[self.step.stage]

    @property
    def outputs(self) -> list[Path]:
        """All outputs of the step, its own output first."""
        output = self.out / (self.step.name + self.stage.suffix)
        return [output, *self.stage.also_writes(self.config, output)]

    @property
    def filled(self) -> Config:
        """The config with the settings given by earlier steps."""
        sources = [Source(name, self.out / name) for name in self.step.sources]
        return self.stage.filled(self.config, sources)


@contextmanager
def naming(step: Step) -> Iterator[None]:
    """Prefix error messages with the step's name."""
    try:
        yield
    except BertenderError as error:
        error.args = (f"step {step.name!r} ({step.stage}): {error}",)
        raise


def make_plan(recipe: Recipe, out: Path) -> list[PlannedStep]:
    """Return the steps with their settings, checked.

    Args:
        recipe: recipe whose steps only name earlier steps.
        out: directory for the outputs.

    Raises:
        BertenderError: the first problem, after the name of the step.
    """
    check_parent("--out", out, recipe.steps[0].name)
    plan = []
    for step in recipe.steps:
        with naming(step):
            STAGES[step.stage].requires()
            config = STAGES[step.stage].config.parse(step.settings)
        plan.append(PlannedStep(step, config, out))
    writers: dict[Path, str] = {}
    for planned in plan:
        name = planned.step.name
        for output in planned.outputs:
            if writers.setdefault(output.resolve(), name) != name:
                raise ConfigError(
                    f"steps {writers[output.resolve()]!r} and {name!r} would both write "
                    f"{output.name}: a step of several tasks writes one artifact more for each. "
                    "Rename one step."
                )
    _check_products(plan)
    _check_files(plan)
    return plan


def _check_products(plan: Sequence[PlannedStep]) -> None:
    """Raise a BertenderError if a step would start from an artifact that it cannot use."""
    products: dict[str, Product] = {}
    by_path: dict[Path, ExpectedModel | None] = {}
    for planned in plan:
        step, stage = planned.step, planned.stage
        with naming(step):
            for position, source in enumerate(step.sources):
                stage.check_source(planned.config, position, source, products[source])
            if stage.suffix:
                continue
            earlier = Earlier([products[source].model for source in step.sources], by_path)
            model = stage.model(planned.filled, earlier)
        starts = [products[source] for source in step.sources]
        products[step.name] = replace(stage.makes_of(planned.config, starts), model=model)
        by_path.update({output.resolve(): model for output in planned.outputs})


def _check_files(plan: Sequence[PlannedStep]) -> None:
    """Raise a BertenderError if a setting names a missing path that no step will make."""
    made: set[Path] = set()
    for planned in plan:
        with naming(planned.step):
            for file in planned.stage.files(planned.filled):
                if file.path is None or file.path.resolve() not in made:
                    file.check()
        made.update(output.resolve() for output in planned.outputs)


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step."""

    step: Step
    output: Path
    reused: bool
    seconds: float
    result: dict[str, Any]


def checked(
    recipe: Recipe, out: Path, force: bool = False, task: Task | None = None
) -> tuple[list[PlannedStep], Task]:
    """Return the steps of a recipe and its task, after all checks possible before a step runs.

    Arguments and errors are those of `run_recipe`; the task is loaded unless it is given.
    """
    plan = make_plan(recipe, out)
    for planned in plan:
        if not planned.stage.suffix and not was_built(planned.outputs[0]):
            with naming(planned.step):
                for place in planned.outputs:
                    check_not_finished(place, force)
    if task is None:
        held_out_alone = any(each.stage.brings_labels(each.config) for each in plan)
        task = load_task(TaskConfig.parse(recipe.task), has_model=held_out_alone)
    plan = _fitting(plan, task)
    for planned in plan:  # settings and sources may conflict with the task
        with naming(planned.step):
            planned.stage.accepts(task)
            planned.stage.check(planned.filled, task)
    return plan, task


def _fitting(plan: Sequence[PlannedStep], task: Task) -> list[PlannedStep]:
    """Return the steps without those for other kinds of tasks, if the rest works without them: a
    table for taggers has no row for a bag of words. A step whose sources have each a part of their
    own needs them all."""
    left_out = {planned.step.name for planned in plan if not planned.stage.takes(task)}
    fitting = []
    for planned in plan:
        if planned.step.name in left_out:
            continue
        sources = tuple(name for name in planned.step.sources if name not in left_out)
        fewer = len(sources) < len(planned.step.sources)
        counts = () if planned.stage.fills else planned.stage.counts(planned.config)
        if fewer and len(sources) not in counts:
            return [*plan]
        step = planned.step.model_copy(update={"sources": sources})
        fitting.append(replace(planned, step=step))
    return fitting or [*plan]


def recipes_of(
    recipe: Recipe, out: Path, tasks: Sequence[str] = (), force: bool = False
) -> dict[Path, Recipe]:
    """Return the recipe of each task by its output folder.

    All are checked first, so that errors of the last recipe do not show after hours.

    Args:
        recipe: recipe for one task or several.
        out: output folder; with several tasks, each has a folder inside it.
        tasks: task names, instead of those in the recipe.
        force: as for `run_recipe`.

    Raises:
        BertenderError: any error that `run_recipe` raises before the first step.
    """
    recipes = {out / name: own for name, own in recipe.of_tasks(tasks).items()}
    if len(recipes) > 1:
        for folder, own in recipes.items():
            checked(own, folder, force)
    return recipes


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    fresh: bool = False,
    force: bool = False,
    at_step: Callable[[Step, int, int], None] = lambda step, number, steps: None,
) -> Iterator[StepOutcome]:
    """Run the steps in order, yielding the outcome of each.

    Args:
        recipe: recipe to run.
        out: directory for an artifact, or a JSON file, of each step.
        fresh: build every step again.
        force: replace finished artifacts there that no run of a recipe has made.
        at_step: called before each step, with its number from 1 and the number of steps.

    Raises:
        BertenderError: any error of a step, with the step's name before the message. Errors of
            `make_plan` are raised before the first step runs.
    """
    plan, task = checked(recipe, out, force)
    names = {planned.step.name for planned in plan}
    for step in recipe.steps:
        if step.name not in names:
            logger.warning(
                "step %r (%s) is left out: it takes no task of %r",
                *(step.name, step.stage, task.problem_type),
            )
    done: dict[str, Artifact] = {}
    for number, planned in enumerate(plan, start=1):
        at_step(planned.step, number, len(plan))
        with naming(planned.step):
            outcome = run_step(planned, task, done, fresh)
            if not planned.stage.suffix:
                done[planned.step.name] = Artifact.load(outcome.output, verify=False)
        yield outcome


def save_averages(found: Mapping[str, Sequence[StepOutcome]], out: Path) -> Averages | None:
    """Write the averages over the tasks of a run to `averages.json`; return them, or None for one
    task, without a comparison, or where no model is in all comparisons."""
    from bertender.comparison.averages import averages

    tables = {
        name: read_comparison(each.output)
        for name, outcomes in found.items()
        for each in outcomes
        if each.step.stage == "compare"
    }
    mean = averages(tables) if len(tables) > 1 else None
    if mean is None or not mean.rows:
        return None
    save_result(mean, out / "averages.json")
    return mean


def run_step(
    planned: PlannedStep, task: Task, done: Mapping[str, Artifact], fresh: bool = False
) -> StepOutcome:
    """Run a step with checked settings, unless its output exists already.

    Args:
        planned: step to run.
        task: task whose texts it reads.
        done: artifacts that it may start from, by the names in the step.
        fresh: run it in any case.
    """
    started = time.monotonic()
    stage, config, outputs = planned.stage, planned.config, planned.outputs
    sources = [done[name] for name in planned.step.sources]
    identity: dict[str, Any] = {
        "stage": stage.name,
        "config": config.identity(),
        "files": stage.files_digest(config),
        "texts": stage.texts_digest(config, task),
        # a comparison shows names and parity of its sources, which are not in their digests
        "sources": [(each.name, each.digest, each.card.findings.parity) for each in sources],
        "task": task.fingerprint() if stage.needs_task else None,
        "libraries": library_versions(),
    }
    if machine := stage.machine(config):
        identity["machine"] = machine
    # other settings may replace a default, but not one that is set explicitly
    at_default = [
        name
        for name in sorted(config.model_fields_set)
        if not config.is_explicit(name, beyond_default=True)
    ]
    if at_default:
        identity["explicit"] = at_default

    def build() -> None:
        if fresh:
            forget_work(outputs[0])
        stage.run(sources, task, config, outputs[0])

    anew = fresh or not stage.cacheable
    reused = build_once(outputs, identity, build, digest_of, fresh=anew)
    seconds = time.monotonic() - started
    return StepOutcome(planned.step, outputs[0], reused, seconds, stage.result(outputs[0]))
