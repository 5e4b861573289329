"""bertender run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import ForceFlag, JsonFlag
from bertender.cli.output import messages, print_entry, print_json, print_words
from bertender.comparison.records import Comparison
from bertender.comparison.table import in_one_sentence
from bertender.core.config import load_place
from bertender.core.errors import ConfigError
from bertender.recipes.recipe import (
    Recipe,
    Setting,
    Step,
    StepOutcome,
    load_recipe,
    read_setting,
    run_recipe,
)
from bertender.recipes.stages import STAGES

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a name from `bertender recipes`, or a .yaml file")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIRECTORY",
        help="where to put the results",
        show_default="runs/RECIPE",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STEP.KEY=VALUE",
        help="change a setting of a step, or of the task (task.KEY=VALUE); may be repeated",
    ),
]
TeacherOption = Annotated[
    str | None,
    typer.Option(
        "--teacher", metavar="FOLDER|NAME", help="start the teacher from this folder or hub name"
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, help="seed of every step; added to the seed of a step that sets its own"
    ),
]
FreshFlag = Annotated[bool, typer.Option("--fresh", help="build every step again")]


def run_command() -> Callable[..., None]:
    """Build `bertender run`."""

    def command(
        recipe: RecipeArgument,
        out: OutOption = None,
        changes: SetOption = None,
        teacher: TeacherOption = None,
        seed: SeedOption = None,
        fresh: FreshFlag = False,
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        chosen = load_recipe(recipe)
        if teacher is not None:
            chosen = chosen.with_settings(_start_from(chosen, teacher))
        if seed is not None:
            chosen = chosen.with_settings(_seeded(chosen, seed))
        chosen = chosen.with_settings(map(read_setting, changes or []))
        outcomes = []
        directory = out or Path("runs") / chosen.name
        for outcome in run_recipe(
            chosen, directory, fresh=fresh, force=force, at_step=_announce(chosen)
        ):
            outcomes.append(outcome)
            if not as_json:
                _show(outcome)
        if as_json:
            print_json(
                {"recipe": chosen.name, "out": str(directory), "steps": [*map(_as_json, outcomes)]}
            )
        else:
            _show_gain(outcomes)
            _show_next(chosen)

    return command


def _start_from(recipe: Recipe, teacher: str) -> Iterator[Setting]:
    """Yield --teacher as a setting of each step that starts from an encoder of the user's."""
    steps = [step for step in recipe.steps if step.stage == "finetune" and not step.sources]
    if not steps:
        raise ConfigError(
            f"--teacher {teacher}: no step of recipe {recipe.name!r} starts from an encoder of "
            "yours. Recipes that do have a `finetune` step without `from`."
        )
    for step in steps:
        yield Setting(step.name, "teacher", teacher)


def _seeded(recipe: Recipe, seed: int) -> Iterator[Setting]:
    """Yield --seed for each step that has one; seeds that a recipe sets apart stay apart."""
    for step in recipe.steps:
        own = step.settings.get("seed", 0)
        if "seed" in STAGES[step.stage].config.model_fields and isinstance(own, int):
            yield Setting(step.name, "seed", own + seed)


def _announce(recipe: Recipe) -> Callable[[Step, int], None]:
    def announce(step: Step, position: int) -> None:
        messages.print(
            f"[bold]\\[{position + 1}/{len(recipe.steps)}] {step.name}[/bold] ({step.stage})",
            highlight=False,
        )

    return announce


def _show(outcome: StepOutcome) -> None:
    load_place(STAGES[outcome.step.stage].shown_by)(outcome.output)
    how = "unchanged, reused" if outcome.reused else f"done in {outcome.seconds:.0f} s"
    print_words(f"{outcome.output}: {how}", "dim")


def _show_gain(outcomes: Sequence[StepOutcome]) -> None:
    """Print what the model that is served gains over the first one of the comparison."""
    served = [
        name for each in outcomes if each.step.stage == "endpoint" for name in each.step.sources
    ]
    for table in outcomes:
        if table.step.stage == "compare" and served and served[-1] in table.step.sources[1:]:
            comparison = Comparison.model_validate_json(table.output.read_text(encoding="utf-8"))
            print_entry(f"\n{in_one_sentence(comparison, served[-1])}", ())


def _show_next(recipe: Recipe) -> None:
    if recipe.next:
        print_entry("\nNext, for your own data:", ())
        activate = Path(sys.prefix) / "bin" / "activate"
        if shutil.which("bertender") is None and activate.is_file():
            print_words(f"  . {activate}")
        for line in recipe.next:
            print_words(f"  {line}")


def _as_json(outcome: StepOutcome) -> dict[str, Any]:
    return {
        "step": outcome.step.name,
        "stage": outcome.step.stage,
        "output": str(outcome.output),
        "reused": outcome.reused,
        "seconds": round(outcome.seconds, 1),
        "result": outcome.result,
    }
