"""Identifiers are in the field's words: what the glossary replaced does not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("bertender", "distill", "export", "quantize", "serve", "benchmarks")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

REPLACED = {
    "answer": "outputs, logits, predictions; a classification, of an endpoint",
    "answered": "predicted",
    "answers": "outputs, logits, predictions",
    "beside": "with, next to",
    "circumstances": "conditions",
    "found": "findings, or the thing's own name",
    "given": "explicit, or the thing's own name",
    "idle": "unused",
    "job": "context, request",
    "jobs": "contexts, requests",
    "kept": "cached (outputs), remaining (heads)",
    "misfit": "incompatible",
    "misfits": "incompatible",
    "named": "TABLE[name], by_name",
    "piece": "token",
    "pieces": "tokens",
    "pretrainee": "training module",
    "refuse": "check",
    "refuses": "check",
    "said": "report, or the thing's own name",
    "told": "report",
    "trainee": "training module",
}
"""A word that a reader of transformers would have to learn -> the field's."""

ALLOWED = {
    "benchmarks/quantization/measuring.py": {"found"},
    "benchmarks/tagging/measuring.py": {"answered", "found"},
    "benchmarks/training/ways_to_distil.py": {"kept_s"},
    "bertender/core/findings/pruning.py": {"pieces_per_text"},
    "bertender/measure/comparison.py": {"circumstances", "kept"},
    "bertender/measure/load.py": {"IDLE_FIELDS", "idle"},  # what systems call it of a core
    "bertender/models/pruned.py": {"heads_kept", "neurons_kept"},
    "bertender/pipeline/named_files.py": {"NamedFile"},  # a file that a setting names
    "serve/check.py": {"answer"},
}
"""Names of a file that stay: nearly all are fields on disk, which change with a schema version."""


def words_of(name: str) -> set[str]:
    """Return the words of an identifier in snake_case or CamelCase."""
    return set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_"))


def defined_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and name of everything that a file defines or assigns."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_are_in_the_words_of_the_field(path: Path) -> None:
    allowed = ALLOWED.get(str(path.relative_to(ROOT)), set())
    wrong = [
        f"line {line}: {name} ({word}: say {REPLACED[word]})"
        for line, name in defined_names(path)
        for word in sorted(words_of(name) & REPLACED.keys())
        if name not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_are_named_in_the_words_of_the_field() -> None:
    assert not [path for path in FILES if words_of(path.stem) & (REPLACED.keys() - {"named"})]


@pytest.mark.parametrize("file", ALLOWED)
def test_exceptions_are_still_needed(file: str) -> None:
    """An exception that its file no longer needs would let the word back in."""
    assert ALLOWED[file] <= {name for _, name in defined_names(ROOT / file)}


def test_the_walk_sees_what_it_should(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    code = "def refuse_busy(given): pass\nclass KeptRows: pass\nx.found = told = 1\n"
    path.write_text(code + "import os as job\ntry: pass\nexcept OSError as said: pass\n")
    names = {name for _, name in defined_names(path)}
    assert names == {"refuse_busy", "given", "KeptRows", "found", "told", "job", "said"}
    assert words_of("KeptRows") == {"kept", "rows"}
