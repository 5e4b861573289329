"""Which row is the same model in ONNX Runtime float32: by digests, never by name."""

from __future__ import annotations

import pytest

from bertender.comparison.records import (
    ComparisonRow,
    onnx_float32_of,
    with_speedups_over_onnx_float32,
)
from tests.comparison.rows import TEACHER


def row(name: str, parent: str | None, kind: str, precision: str, ms: float = 1.0) -> ComparisonRow:
    return TEACHER.model_copy(
        update={
            "name": name,
            "digest": name,
            "parent": parent,
            "kind": kind,
            "precision": precision,
            "latency": TEACHER.latency.model_copy(update={"single_ms": (((ms,), (ms,)),)}),
        }
    )


ROWS = (
    row("teacher", None, "torch", "float32", 8.0),
    row("teacher-onnx", "teacher", "onnx", "float32", 4.0),
    row("teacher-int8", "teacher-onnx", "onnx", "int8", 2.0),
    row("teacher-qat", "teacher", "onnx", "int8", 2.0),
    row("teacher-half", "teacher", "onnx", "float16", 5.0),
    row("student", "teacher", "torch", "float32", 4.0),
    row("student-onnx", "student", "onnx", "float32", 2.0),
    row("student-int8", "student-onnx", "onnx", "int8", 1.0),
    row("bag", None, "bag-of-words", "float32", 1.0),
)
EXPECTED = {
    "teacher": ("teacher-onnx", 0.5),
    "teacher-onnx": ("teacher-onnx", 1.0),
    "teacher-int8": ("teacher-onnx", 2.0),
    "teacher-qat": ("teacher-onnx", 2.0),
    "teacher-half": ("teacher-onnx", 0.8),
    "student": ("student-onnx", 0.5),
    "student-onnx": ("student-onnx", 1.0),
    "student-int8": ("student-onnx", 2.0),
    "bag": (None, None),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_finds_its_own_graph(name: str) -> None:
    (own,) = (each for each in ROWS if each.name == name)
    found = onnx_float32_of(own, ROWS)
    assert (found and found.name) == EXPECTED[name][0]


def test_speedups_leave_the_change_of_runtime_out() -> None:
    speedups = {
        each.name: each.speedup_over_onnx_float32 and each.speedup_over_onnx_float32.value
        for each in with_speedups_over_onnx_float32(ROWS, seed=0)
    }
    assert speedups == pytest.approx({name: value for name, (_, value) in EXPECTED.items()})


def test_a_table_without_the_graph_has_none() -> None:
    """A student is another model than the teacher that it came from."""
    rows = [each for each in ROWS if each.name not in ("student-onnx", "student-int8")]
    made = {each.name: each for each in with_speedups_over_onnx_float32(rows, seed=0)}
    assert made["student"].speedup_over_onnx_float32 is None
    alone = with_speedups_over_onnx_float32(ROWS[-2:-1], seed=0)
    assert alone[0].speedup_over_onnx_float32 is None


def test_rows_of_earlier_files_know_no_parent() -> None:
    rows = [each.model_copy(update={"parent": None}) for each in ROWS]
    made = with_speedups_over_onnx_float32(rows, seed=0)
    found = [each.name for each in made if each.speedup_over_onnx_float32]
    assert found == ["teacher-onnx", "student-onnx"], "each is at least itself"
