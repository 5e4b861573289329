"""The project's source files that a module runs: found by reading imports, nothing is imported."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

__all__ = ["COUNTED_OTHERWISE", "PACKAGES", "PROJECT", "source_digest", "source_files"]

PACKAGES = ("bertender", "distill", "export", "quantize", "serve")
PROJECT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages."""
COUNTED_OTHERWISE: Mapping[str, str] = {
    "bertender.pipeline.stage": "the settings and sources that it hands on count by themselves",
    "bertender.pipeline.products": "it describes what steps write, for plans",
    "bertender.pipeline.named_files": "files that settings name count by their digest",
    "bertender.core.errors": "an error ends a step, and no output depends on it",
    "bertender.core.progress": "it shows how far the work is, and no output depends on it",
    "bertender.models.expected": "a plan asks it, and what a step then runs does not",
    "bertender.tasks.loading": "a task counts by the fingerprint of its data, however it is read",
    "bertender.tasks.registry": "the same: its rows name the sources of a task's data",
}
"""Modules that are not a part of what a step runs, though it imports them, and why."""
PLACE = re.compile(r"([\w.]+):\w+")


def source_files(modules: Iterable[str], project: Path = PROJECT) -> dict[str, Path]:
    """Return the files, by module, that some modules and all that they import are read from.

    Imports inside of functions count too, and so do the places (`module:NAME`) that a table of a
    stage package names in it. Those that only a type checker reads do not, nor do other packages
    than the project's own, nor what is COUNTED_OTHERWISE unless it is asked for.
    """
    files: dict[str, Path] = {}
    waiting = list(modules)
    seen = set(COUNTED_OTHERWISE.keys() - waiting)
    while waiting:
        module = waiting.pop()
        path = None if module in seen else _path(module, project)
        seen.add(module)
        if path is not None:
            files[module] = path
            source = path.read_bytes()
            waiting += _imported(source)
            waiting += [name for name in _places(source) if _is_counted(name, module)]
            waiting += [module.rpartition(".")[0]]  # a package runs before its modules
    return files


def source_digest(modules: Iterable[str], project: Path = PROJECT) -> str:
    """Return a digest of the source code of `source_files`."""
    digest = hashlib.sha256()
    for module, path in sorted(source_files(modules, project).items()):
        source = path.read_bytes()
        digest.update(f"{module} {len(source)} ".encode() + source)
    return digest.hexdigest()


def _path(module: str, project: Path) -> Path | None:
    """Return the file of a module; None for a name in a module, and for other packages."""
    first, *_ = parts = module.split(".")
    if first not in PACKAGES:
        return None
    stem = project.joinpath(*parts)
    candidates = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imported(source: bytes) -> tuple[str, ...]:
    """Return all names that a module imports; whether one is a module shows by its file."""
    return tuple(name for node in _run(ast.parse(source)) for name in _names(node))


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all within it, except what only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _run(child)


@cache
def _places(source: bytes) -> tuple[str, ...]:
    """Return the modules of all strings that read as the place of a row."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    matches = (PLACE.fullmatch(value) for value in strings if isinstance(value, str))
    return tuple(match[1] for match in matches if match)


def _is_counted(place: str, module: str) -> bool:
    """Return whether a module runs what its table names: that of the same stage package.

    The tables of `bertender` name other steps, what prints, and data, which count by themselves.
    """
    package = module.partition(".")[0]
    return package != "bertender" and place.partition(".")[0] == package


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
