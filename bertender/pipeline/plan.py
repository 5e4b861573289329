"""Checking a recipe before its first step runs.

The settings of all steps; what each step starts from, as far as the earlier step's settings show;
the files that settings name; what the machine must have; and that no step writes over another's
output. So no step that trains for hours is followed by one that was bound to fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertender.core.atomic import unusable_parent
from bertender.core.config import Config
from bertender.core.errors import BertenderError, ConfigError
from bertender.pipeline.products import Earlier, Product, Source
from bertender.pipeline.recipe import Recipe, Step
from bertender.pipeline.stages import STAGES
from bertender.tasks.task import Task

if TYPE_CHECKING:  # it loads PyTorch
    from bertender.models.expected import ExpectedModel

__all__ = ["Planned", "check_task", "make_plan", "naming", "outputs_of"]


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
                stage.wants(config, position).check(source, products[source])
            if stage.makes is None:
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
