"""Functions that take much or hold much at once are few, over all packages of the product."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from bertender.pipeline.source_files import PACKAGES, PROJECT

Function = ast.FunctionDef | ast.AsyncFunctionDef

MOST_PARAMETERS, MOST_LOCALS = 6, 12
WIDE, BUSY = 5, 5
"""How many functions have more: lower them with each one that goes."""


def functions() -> Iterator[tuple[str, Function]]:
    """Yield every function of the product, with its place."""
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, Function):
                    yield f"{path.relative_to(PROJECT)}:{node.lineno} {node.name}", node


def parameters(function: Function) -> int:
    """Return how many parameters a function has; `self` is none."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each]
    return sum(each.arg not in ("self", "cls") for each in (*named, *starred))


def local_names(function: Function) -> int:
    """Return how many names a function binds, those of its loops and inner functions included."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return len({name.id for name in names if isinstance(name.ctx, ast.Store)})


@pytest.mark.parametrize(
    ("count", "most", "allowed"),
    [(parameters, MOST_PARAMETERS, WIDE), (local_names, MOST_LOCALS, BUSY)],
)
def test_few_functions_take_or_hold_much(
    count: Callable[[Function], int], most: int, allowed: int
) -> None:
    found = {place: count(function) for place, function in functions()}
    over = {place: number for place, number in found.items() if number > most}
    assert len(found) > 1000 and len(over) == allowed, over
