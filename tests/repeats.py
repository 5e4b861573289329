"""Which tests repeat a path that another test of the same function has gone already.

They are marked `slow`: `make test` leaves them to `make test-slow`. Three kinds repeat a path:

- architectures under another name: rows of FAMILIES that differ in their language head alone;
- combinations of several parameters (scheme by architecture, method by teacher), once each value of
  each parameter has been seen;
- tests of ONE_PATH, each of which costs seconds for every value of its parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.models.families import BERT_HEAD, FAMILIES
from bertender.models.pruned import PRUNABLE

__all__ = ["FOLDERS", "ONE_PATH", "REPEATED", "repeats"]

FOLDERS = ("core", "distill", "export", "models", "quantize", "text", "training")
"""Under tests/, those whose tests train, export and quantize."""

LAYERS = {name: replace(family, language_head=BERT_HEAD) for name, family in FAMILIES.items()}
ALIKE = {name: [other for other in FAMILIES if LAYERS[other] == LAYERS[name]] for name in FAMILIES}
PREFERRED = ("bert", "roberta")
"""The ones to test of those that are alike."""
OTHERS = frozenset(
    name
    for name, alike in ALIKE.items()
    if name != next((each for each in PREFERRED if each in alike), alike[0])
)
REPEATED = OTHERS | {PRUNABLE[name].config.model_type for name in OTHERS & PRUNABLE.keys()}
"""Architectures that have the row of another."""

ONE_PATH = frozenset(
    {
        "test_a_killed_run_goes_on_in_its_phase_to_the_same_weights",
        "test_a_killed_run_goes_on_to_the_same_weights",
        "test_a_killed_run_of_two_lengths_goes_on_in_its_phase",
        "test_a_table_has_times_of_all_parts",
        "test_a_score_that_falls_too_far_is_refused_and_gone",
        "test_every_architecture_answers_in_half_the_bytes",
        "test_every_method_trains_a_tagger",
        "test_every_scheme_goes_by_graphs_of_two_files",
        "test_it_teaches_a_student_that_reads_word_pieces",
        "test_optimised_graphs_are_converted_too",
        "test_the_same_source_gives_the_same_bytes",
    }
)
"""Functions whose first test is quick: the others take seconds over rows tested elsewhere."""


def repeats(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that repeat a path, in the folders where that costs time."""
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        if _folder(item.path) not in FOLDERS:
            continue
        parameters = _parameters(item)
        named = {value for value in parameters.values() if isinstance(value, str)}
        if named & REPEATED:
            yield item
            continue
        function = item.nodeid.partition("[")[0]
        if function.rpartition("::")[2] in ONE_PATH and any(function == f for f, *_ in seen):
            yield item
            continue
        values = {(function, name, str(index)) for name, index in _indices(item).items()}
        if len(values) > 1 and values <= seen:
            yield item
        seen |= values


def _folder(path: Path) -> str:
    """Return the folder under tests/ that a test lies in."""
    parts = path.relative_to(Path(__file__).parent).parts
    return parts[0] if len(parts) > 1 else ""


def _parameters(item: pytest.Item) -> dict[str, Any]:
    call = getattr(item, "callspec", None)
    return dict(call.params) if call else {}


def _indices(item: pytest.Item) -> dict[str, int]:
    call = getattr(item, "callspec", None)
    return dict(call.indices) if call else {}
