"""bertender run and bertender recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.commands.flags import JsonFlag
from bertender.commands.measure_commands import print_comparison
from bertender.commands.show import console, messages, print_artifact, print_json, print_rows
from bertender.core.artifact import Artifact
from bertender.measure.compare import Comparison
from bertender.measure.parity import Parity
from bertender.recipe import Recipe, Step, StepOutcome, load_recipe, recipe_names, run_recipe
from serve.check import EndpointCheck

__all__ = ["recipes_command", "run_command"]


def run_command() -> Callable[..., None]:
    """Build `bertender run`."""

    def command(
        recipe: Annotated[str, typer.Argument(help="a name from `bertender recipes`, or a file")],
        out: Annotated[
            Path | None, typer.Option(help="directory of the results [default: runs/RECIPE]")
        ] = None,
        changes: Annotated[
            list[str] | None, typer.Option("--set", help="change a setting: step.key=value")
        ] = None,
        teacher: Annotated[
            str | None, typer.Option(help="start the teacher from this folder or hub name")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="seed of every step that has one")] = None,
        fresh: Annotated[bool, typer.Option("--fresh", help="build every step anew")] = False,
        as_json: JsonFlag = False,
    ) -> None:
        chosen = load_recipe(recipe)
        chosen = chosen.with_settings([*_shorthands(chosen, teacher, seed), *(changes or [])])
        outcomes = []
        directory = out or Path("runs") / chosen.name
        for outcome in run_recipe(chosen, directory, fresh=fresh, at_step=_announce(chosen)):
            outcomes.append(_as_json(outcome))
            if not as_json:
                _show(outcome)
        if as_json:
            print_json({"recipe": chosen.name, "out": str(directory), "steps": outcomes})
        else:
            _show_next(chosen)

    return command


def recipes_command() -> Callable[..., None]:
    """Build `bertender recipes`."""

    def command(as_json: JsonFlag = False) -> None:
        names = recipe_names()
        if as_json:
            print_json(names)
        else:
            print_rows(("recipe", "what it does"), list(names.items()))

    return command


def _shorthands(recipe: Recipe, teacher: str | None, seed: int | None) -> list[str]:
    """Write --teacher and --seed as settings of the steps that they are for."""
    changes = []
    for step in recipe.steps:
        if teacher and step.stage == "finetune" and not step.sources:
            changes.append(f"{step.name}.teacher={teacher}")
        if seed is not None:
            changes.append(f"{step.name}.seed={seed}")
    return changes


def _announce(recipe: Recipe) -> Callable[[Step, int], None]:
    def announce(step: Step, position: int) -> None:
        messages.print(
            f"[bold]\\[{position + 1}/{len(recipe.steps)}] {step.name}[/bold] ({step.stage})",
            highlight=False,
        )

    return announce


def _show_artifact(outcome: StepOutcome) -> None:
    print_artifact(Artifact.load(outcome.output, verify=False))


def _show_comparison(outcome: StepOutcome) -> None:
    print_comparison(Comparison.model_validate(outcome.result))


def _show_parity(outcome: StepOutcome) -> None:
    parity = Parity.model_validate(outcome.result)
    console.print(
        f"{parity.candidate} answers as {parity.reference} does: agreement "
        f"{parity.agreement:.4f} over {parity.texts} texts in {parity.rows} arrangements",
        highlight=False,
    )


def _show_endpoint(outcome: StepOutcome) -> None:
    check = EndpointCheck.model_validate(outcome.result)
    rows = [
        (served.answer.label, f"{served.answer.score:.3f}", " | ".join(served.text))
        for served in check.served
    ]
    print_rows(("label", "score", "text"), rows)
    console.print(
        f"served by Triton and stopped; logits within {check.max_abs_difference:.1g} of the local "
        "model's",
        highlight=False,
    )


SHOWN: Mapping[str, Callable[[StepOutcome], None]] = {
    "compare": _show_comparison,
    "verify": _show_parity,
    "endpoint": _show_endpoint,
}
"""How a step's result is shown; steps that are not here have written an artifact."""


def _show(outcome: StepOutcome) -> None:
    SHOWN.get(outcome.step.stage, _show_artifact)(outcome)
    how = "unchanged, reused" if outcome.reused else f"done in {outcome.seconds:.0f} s"
    console.print(f"[dim]{outcome.output}: {how}[/dim]", highlight=False, soft_wrap=True)


def _show_next(recipe: Recipe) -> None:
    if recipe.next:
        console.print("\n[bold]Next, for your own data:[/bold]")
        for line in recipe.next:
            console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)


def _as_json(outcome: StepOutcome) -> dict[str, Any]:
    return {
        "step": outcome.step.name,
        "stage": outcome.step.stage,
        "output": str(outcome.output),
        "reused": outcome.reused,
        "seconds": round(outcome.seconds, 1),
        "result": outcome.result,
    }
