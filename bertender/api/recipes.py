"""The function that runs a recipe."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertender.pipeline.calls import PathLike
    from bertender.pipeline.recipe import Recipe
    from bertender.pipeline.runner import StepOutcome

__all__ = ["run_recipe"]


def run_recipe(
    recipe: PathLike | Recipe,
    *,
    out: PathLike | None = None,
    fresh: bool = False,
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> list[StepOutcome]:
    """Run the steps of a recipe; what is built already is reused.

    Args:
        recipe: a name from `bertender recipes`, or a .yaml file.
        out: directory that gets an artifact or a JSON file for each step; by default
            `runs/RECIPE`.
        fresh: build every step again.
        force: replace finished artifacts that no run of a recipe has made there.
        settings: `STEP.KEY` -> value, and `task.KEY` -> value, to change in the recipe.

    Raises:
        BertenderError: whatever a step raises, with the name of the step before the message.

    Example:
        fewer = {"student.layers": 1}
        steps = bertender.run_recipe("recipe.yaml", out="runs/recipe", settings=fewer)
        print([(step.output, step.reused) for step in steps])
    """
    from bertender.pipeline.calls import changes
    from bertender.pipeline.recipe import Recipe, load_recipe
    from bertender.pipeline.runner import run_recipe as run

    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(os.fspath(recipe))
    chosen = chosen.with_settings(changes(settings or {}))
    return list(run(chosen, Path(out or Path("runs") / chosen.name), fresh=fresh, force=force))
