"""`__all__` of every module is true: what it lists exists, and what is public is listed."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

from tests.packages import PACKAGES, ROOT

RUN_BY_NAME_ONLY = {"bertender/__main__.py"}


def modules() -> list[str]:
    """Return every module as a path; an `__init__.py` that defines and imports nothing is none."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    paths = {file.relative_to(ROOT).as_posix(): file for file in files}
    return [
        path
        for path, file in paths.items()
        if path not in RUN_BY_NAME_ONLY and not (file.name == "__init__.py" and is_empty(file))
    ]


def is_empty(file: Path) -> bool:
    """Return whether a file holds nothing but a docstring and plain constants."""
    return all(isinstance(node, ast.Expr | ast.Assign) for node in tree_of(file).body)


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def definitions(tree: ast.Module) -> set[str]:
    """Return the public functions and classes that a module defines itself."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    return {name for name in names if not name.startswith("_")}


def listed(tree: ast.Module) -> list[str] | None:
    """Return `__all__` as it is written, or None where there is none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("path", modules())
def test_all_is_true(path: str) -> None:
    tree = tree_of(ROOT / path)
    names = listed(tree)
    assert names is not None, f"{path} has no __all__"
    assert len(names) == len(set(names)), f"{path} lists a name twice"
    unlisted = definitions(tree) - set(names)
    assert not unlisted, f"{path}: list {sorted(unlisted)} in __all__, or name them with _"
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    assert not private, f"{path} lists private names: {private}"


@pytest.mark.parametrize("path", modules())
def test_listed_names_exist(path: str) -> None:
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = importlib.import_module(name)
    missing = [listed_name for listed_name in module.__all__ if not hasattr(module, listed_name)]
    assert not missing, f"{path} lists {missing}, which it does not have"


def test_modules_are_found() -> None:
    assert {"bertender/core/artifact.py", "distill/objectives/__init__.py"} <= set(modules())
    assert "bertender/core/__init__.py" not in modules()


def test_every_package_is_listed_for_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files = [path for top in PACKAGES for path in (ROOT / top).rglob("__init__.py")]
    folders = [".".join(path.parent.relative_to(ROOT).parts) for path in files]
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(folders)
