"""The tables of faults and attacks of an endpoint, from the tests that bring them about.

A test says its row itself: `@pytest.mark.fault("the fault", "what happens")`. So no row is without
a test. The sources are read and not imported: their attacks are hundreds of megabytes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cells import Table
from benchmarks.harness import RESULTS
from bertender.core.errors import DataError

TESTS = RESULTS.parents[1] / "tests" / "serve"
OF_FAULTS = ("door/test_real_engines.py", "door/test_process.py")
"""Files whose every test has a row."""
ATTACKS = TESTS / "door" / "test_attacks.py"
DICTIONARIES = ("HTTP_ATTACKS", "GRPC_ATTACKS")


def faults_table() -> Table:
    """Faults and attacks, and how the server responds to each.

    Raises:
        DataError: a test of faults has no row, or a fault has two outcomes.
    """
    rows: dict[str, str] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        own = path.relative_to(TESTS).as_posix()
        for test, marks in _tests(path):
            if not marks and own in OF_FAULTS:
                raise DataError(f"{own}::{test} has no row. Give it one with pytest.mark.fault.")
            for fault, happens in marks:
                if rows.setdefault(fault, happens) != happens:
                    raise DataError(f"{own}::{test} says another outcome of {fault!r}.")
    return Table(["Fault", "What happens"], sorted(rows.items()))


def _tests(path: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the tests of a file, each with the rows that it says."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = []
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.fault":
                    fault, happens = map(ast.literal_eval, each.args)
                    marks.append((fault, happens))
            yield node.name, marks


def attacks_table() -> Table:
    """Attacks by name, by what the door answers."""
    answers: dict[str, list[str]] = defaultdict(list)
    for node in ast.parse(ATTACKS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in DICTIONARIES:
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)
                answers[str(ast.literal_eval(value.elts[-1]))].append(str(key.value))
    rows = [[f"`{answer}`", "; ".join(names)] for answer, names in answers.items()]
    return Table(["Answer", "Attack"], rows)
