"""One tree of errors, drawn as it is, with messages that help."""

from __future__ import annotations

import inspect
import re

import pytest

from bertender.core import errors
from bertender.core.errors import BertenderError, UnknownNameError, nearest_hint

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
}
LINE = re.compile(r"^    (?P<branches>[ │├└─]*)(?P<name>\w+Error)\b")


def drawn_tree() -> dict[str, str]:
    """Return each drawn class with the one it is drawn under."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := LINE.match(line):
            depth = len(found["branches"]) // 4
            path = [*path[:depth], found["name"]]
            parents[found["name"]] = path[-2] if depth else "Exception"
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn_tree() == {name: one.__base__.__name__ for name, one in CLASSES.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_one_except_catches_all(name: str) -> None:
    assert issubclass(CLASSES[name], BertenderError) and CLASSES[name].__doc__


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tinybrt", "no method 'tinybrt'. Did you mean 'tinybert'? Known: hard, pkd, tinybert."),
        ("xyz", "no method 'xyz'. Known: hard, pkd, tinybert."),
        ("", "no method ''. Known: hard, pkd, tinybert."),
    ],
)
def test_unknown_names_get_the_nearest_and_all(name: str, message: str) -> None:
    assert str(UnknownNameError("method", name, ("tinybert", "pkd", "hard"))) == message


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("epoch", ["epochs", "seed"], " Did you mean 'epochs'?"),
        ("epochs", [], ""),
        ("learning-rate", ["warmup", "learning_rate"], " Did you mean 'learning_rate'?"),
        ("colour", ["epochs", "seed"], ""),
    ],
)
def test_nearest_hint(name: str, known: list[str], hint: str) -> None:
    assert nearest_hint(name, known) == hint
