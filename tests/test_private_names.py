"""No test patches a private name: what tests replace or listen to is public, for users too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
PATCHERS = frozenset({"setattr", "delattr", "patch", "object", "multiple", "dict"})
"""Functions that replace an attribute: of `monkeypatch`, of `mock.patch`, and the built-in ones."""
OWN = frozenset({"self", "cls"})
PRIVATE = re.compile(r"_(?!_)\w*")
PRIVATE_PLACE = re.compile(r"[A-Za-z]\w*([.:]\w+)*[.:]_(?!_)\w*([.:]\w+)*")
"""The path of a private name, as `mock.patch` and our own tests spell it: package.module:_Name.x"""


def patched_privates(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that code replaces, and those that strings of it name to replace."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            yield from map(ast.unparse, filter(is_private_place, targets_of(node)))
        elif isinstance(node, ast.Call) and name_of(node.func) in PATCHERS:
            if any(map(is_private_argument, [*node.args, *named_values(node)])):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from patched_in_text(node.value)


def targets_of(node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete) -> list[ast.expr]:
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
    return [part for target in targets for part in getattr(target, "elts", [target])]


def is_private_place(target: ast.expr) -> bool:
    """Return whether an attribute, or what it is an attribute of, is private to somebody else."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        of_itself = isinstance(target.value, ast.Name) and target.value.id in OWN
        if isinstance(target, ast.Attribute) and PRIVATE.fullmatch(target.attr) and not of_itself:
            return True
        target = target.value
    return False


def is_private_argument(argument: ast.expr) -> bool:
    """Return whether a patcher is given a private name, or an owner of one."""
    if isinstance(argument, ast.Constant):
        return isinstance(argument.value, str) and bool(PRIVATE.fullmatch(argument.value))
    named = isinstance(argument, ast.Name) and PRIVATE.fullmatch(argument.id)
    return bool(named) or is_private_place(argument)


def named_values(call: ast.Call) -> list[ast.expr]:
    """Return the keyword arguments of a call: the values, and the names that they replace."""
    values = [keyword.value for keyword in call.keywords]
    return [*values, *(ast.Constant(keyword.arg) for keyword in call.keywords if keyword.arg)]


def name_of(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def patched_in_text(text: str) -> Iterator[str]:
    """Yield the place that a string is, or what it patches if it is a program."""
    if PRIVATE_PLACE.fullmatch(text):
        yield text
    elif "\n" in text and "import " in text:
        try:
            program = ast.parse(text)
        except SyntaxError:
            return
        yield from patched_privates(program)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_no_private_name_is_patched(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path == Path(__file__):
        tree.body = [node for node in tree.body if not isinstance(node, ast.Assign)]  # samples
    found = list(patched_privates(tree))
    assert not found, "patch or listen to something public; make it public where there is nothing"


PATCHES = (
    'monkeypatch.setattr(module, "_compute", fake)',
    'monkeypatch.setattr(_Trainer, "step", fake)',
    'monkeypatch.setattr(loop._Trainer, "step", fake)',
    'patch.setattr("package.module._name", 1)',
    'patch.setattr("package.module._Class.step", fake)',
    'monkeypatch.delattr(module, "_compute")',
    'mock.patch.object(module, "_compute")',
    'mock.patch("package.module._compute")',
    "mock.patch.multiple(module, _compute=fake)",
    'setattr(module, "_compute", fake)',
    "module._compute = fake",
    "module._part.public = fake",
    "module.public, module._compute = fake, fake",
    "del module._compute",
    'DEATH = "package.module:_Class.write"',
    'CODE = "\\nimport module\\nmodule._compute = fake\\n"',
)
ALLOWED = (
    'monkeypatch.setattr(module, "compute", fake)',
    'monkeypatch.setattr("package.module.name", 1)',
    "self._compute = fake",
    "_compute = fake",
    "module.__doc__ = text",
    'name = "_compute"',
    'text = "a text. _like this"',
    "before = module._compute",
)


@pytest.mark.parametrize("code", PATCHES)
def test_each_way_to_patch_is_seen(code: str) -> None:
    assert list(patched_privates(ast.parse(code)))


@pytest.mark.parametrize("code", ALLOWED)
def test_what_is_public_or_ones_own_may_be_replaced(code: str) -> None:
    assert not list(patched_privates(ast.parse(code)))
