"""What `make test` has of parametrised tests; what repeats a path is `slow`, in `make test-slow`.

Three kinds repeat a path:

- values that are not named in `quick`, and all but the first test of a function marked `one_path`;
- combinations of several parametrizations (scheme by architecture, method by teacher), once each
  value of each has been seen, in FOLDERS;
- architectures ALIKE, whose rows in FAMILIES hardly differ from another's, and others TABLED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDERS = (
    "benchmarks",
    "compression",
    "core",
    "distill",
    "export",
    "models",
    "problems",
    "quantize",
    "recipes",
    "serve",
    "text",
    "training",
)
"""Under tests/, those whose tests train, export and quantize."""

ALIKE = frozenset(
    {"big_bird", "camembert", "electra", "ernie", "gte", "jina_embeddings_v3", "xlm-roberta"}
)
ALIKE |= {f"bertender-pruned-{name}" for name in ALIKE}
TABLED = ALIKE | {"eurobert", "nomic_bert", "roformer"}
TABLED |= {"bertender-pruned-nomic_bert", "bertender-pruned-roformer"}
"""These, and those that `test_families_and_steps` alone is quick on."""


def quick(values: Iterable[str], *names: str) -> list[Any]:
    """Return the values of a parameter, all but those that are named marked `slow`."""
    values = list(values)
    assert set(names) <= set(values), set(names) - set(values)
    return [
        pytest.param(value, marks=() if value in names else pytest.mark.slow) for value in values
    ]


def repeats(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that repeat a path."""
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    begun: set[str] = set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        values = {(function, *axis) for axis in _axes(item, parameters)}
        of_one_path = item.get_closest_marker("one_path") and function in begun
        of_alike = {value for value in parameters.values() if isinstance(value, str)} & TABLED
        combined = len(values) > 1 and values <= seen
        if of_one_path or (_folder(item.path) in FOLDERS and (of_alike or combined)):
            yield item
        elif not item.get_closest_marker("slow"):
            seen |= values
            begun.add(function)


def _folder(path: Path) -> str:
    """Return the folder under tests/ that a test lies in."""
    parts = path.relative_to(Path(__file__).parent).parts
    return parts[0] if len(parts) > 1 else ""


def _axes(
    item: pytest.Item, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and the values of each parametrization: a row of several values is one.

    Values are known by their objects, which all tests of a function share; pytest's own `indices`
    number the combinations.
    """
    marked = [_names(mark.args[0]) for mark in item.iter_markers("parametrize")]
    of_fixtures = sorted(parameters.keys() - {name for names in marked for name in names})
    for names in (*marked, *((name,) for name in of_fixtures)):
        yield ",".join(names), tuple(id(parameters[name]) for name in names)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(","))
    return tuple(names)
