"""The advice for a machine against the raw tables of runtimes: what it names was the fastest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.common.shapes import SHAPES, Shape
from benchmarks.documents.block import ROOT
from benchmarks.documents.blocks import TABLES
from benchmarks.runtimes.measuring import RuntimeBenchmark
from benchmarks.runtimes.table import Timed, machine_of, read_runtimes, rows_of
from bertender.pipeline.advice import ADVICE, Advice, Choice, advice_for

FILES = {
    file: ROOT / file
    for name in ("runtimes", "runtimes-avx2", "runtimes-gpu")
    for file in TABLES[name].files
}
SHAPES_OF_USE = {"single": SHAPES[:1], "batches": SHAPES[1:], "exact": SHAPES}
FLOATS = ("float32", "float16")
MEASURED = [row for row in ADVICE if row.basis != "not measured"]


def _results(advice: Advice) -> list[RuntimeBenchmark]:
    return [
        result
        for result in read_runtimes(FILES)
        if advice_for(result.comparison.circumstances.environment)[0] is advice
    ]


def _scheme(row: Timed) -> str:
    """Return the scheme of a row: names of dynamic ones vary."""
    if row.row.precision in FLOATS:
        return row.row.precision
    return "static" if "static" in row.row.name else "dynamic"


def _is_advised(row: Timed, choice: Choice) -> bool:
    words = choice.make.split()
    named = (words[words.index(each) + 1] for each in ("--scheme", "--precision") if each in words)
    return (_scheme(row), row.row.runtime) == (next(named, "float32"), choice.runtime)


def _fastest(result: RuntimeBenchmark, shape: Shape, choice: Choice) -> Iterator[Timed]:
    """Yield the rows of floats or of 8 bits, as the choice is, that none is faster than."""
    in_8_bits = "--scheme" in choice.make
    rows = [row for row in rows_of(result) if (_scheme(row) in FLOATS) != in_8_bits]
    for row in rows:
        if all(shape.speedup(row.times, other.times).low <= 1 for other in rows):
            yield row


def _name(result: RuntimeBenchmark) -> str:
    return f"{result.layers} layers, {machine_of(result)}"


@pytest.mark.parametrize("advice", MEASURED, ids=lambda row: row.machine)
def test_a_machine_with_measurements_has_its_own(advice: Advice) -> None:
    assert _results(advice)


SLOWER = {
    ("12 layers, AMD EPYC (AVX-512 VNNI)", "single"),
}
"""Models for which something else was faster, as `why` says."""


@pytest.mark.parametrize("use", SHAPES_OF_USE)
@pytest.mark.parametrize("advice", MEASURED, ids=lambda row: row.machine)
def test_what_is_advised_was_the_fastest_in_a_shape_of_each_model(advice: Advice, use: str) -> None:
    wrong, choice = set(), advice.choices[use]
    for result in _results(advice):
        if not any(_is_advised(row, choice) for row in rows_of(result)):
            continue  # this file has no artifact of the scheme
        fastest = [row for shape in SHAPES_OF_USE[use] for row in _fastest(result, shape, choice)]
        if not any(_is_advised(row, choice) for row in fastest):
            wrong.add((_name(result), use))
    assert wrong == SLOWER & {(_name(result), use) for result in _results(advice)}
