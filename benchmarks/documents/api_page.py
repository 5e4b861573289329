"""The reference of the Python functions, made from their docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import bertender

__all__ = ["NAMES", "api_block", "example_of"]

NAMES = tuple(name for name in bertender.__all__ if not name.startswith("_"))

SECTION = re.compile(r"^(Args|Raises|Example):\n((?:(?: {4}.*)?\n)+)", re.M)
ENTRY = re.compile(r"^(\S[^:]*): ((?:.+\n?(?: {4}.+\n?)*))", re.M)


def api_block(files: Mapping[str, Path]) -> str:
    """Return a section for each promised name: its signature, what it does, and an example."""
    return "\n".join(_section(name) for name in NAMES)


def example_of(name: str) -> str:
    """Return the example in the docstring of a promised name."""
    return _sections(name)["Example"]


def _section(name: str) -> str:
    parts = _sections(name)
    lists = [_entries(head, parts[head]) for head in ("Args", "Raises") if head in parts]
    head = [f"### {name}", _signature(name), _summary(name), *lists]
    return "\n\n".join([*head, f"```python\n{parts['Example']}\n```\n"])


def _signature(name: str) -> str:
    value = getattr(bertender, name)
    if inspect.isclass(value):
        return f"`class bertender.{name}`"
    # an annotation is shown as it is written; a default keeps its quotes
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    return f"`bertender.{name}{signature}`"


def _summary(name: str) -> str:
    return SECTION.sub("", _docstring(name)).strip()


def _sections(name: str) -> dict[str, str]:
    sections = SECTION.findall(_docstring(name))
    return {head: textwrap.dedent(body).strip() for head, body in sections}


def _docstring(name: str) -> str:
    return (inspect.getdoc(getattr(bertender, name)) or "") + "\n"


def _entries(head: str, text: str) -> str:
    """Return the lines of `Args:` or `Raises:` as a list."""
    title = {"Args": "Arguments", "Raises": "Raises"}[head]
    lines = [
        "- " + ", ".join(f"`{each}`" for each in names.split(", ")) + f": {' '.join(what.split())}"
        for names, what in ENTRY.findall(text)
    ]
    return "\n".join([f"{title}:", "", *lines])
