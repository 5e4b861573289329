"""Writes the tables of the pages from raw results and from the product's own tables.

They stand between `<!-- table: NAME -->` and `<!-- end -->` in README.md, in docs/ and in
benchmarks/reports/.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import (
    bad_clients,
    compress,
    gate,
    memory,
    methods,
    models,
    pretraining,
    pruning,
    quantization,
    rivals,
    runtimes,
    scoring,
    serving,
    soak,
    startup,
    training,
)
from benchmarks.cells import DASH, Table
from benchmarks.harness import RESULTS, Run, newest, read_runs
from bertender.core.errors import ConfigError, DataError
from bertender.gate.judge import CHECKS, TOLERANCES
from bertender.models.families import FAMILIES
from bertender.models.steps import STEPS

ROOT = RESULTS.parents[1]
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.S)

Write = Callable[[Sequence[Run]], Table]

MEASURED: Mapping[str, tuple[str, Write]] = {
    "sst2": ("sst2", models.table),
    "kinds": ("kinds", models.kinds_table),
    "languages": ("languages", models.languages_table),
    "modernbert": ("modernbert", models.table),
    "windows": ("windows", models.windows_table),
    "seeds": ("seeds", models.seeds_table),
    "few-bits": ("few-bits", models.seeds_table),
    "starts": ("starts", models.starts_table),
    "compress": ("compress", compress.table),
    "headline": ("headline", compress.chain_table),
    "methods": ("methods", methods.table),
    "methods-epochs": ("methods-epochs", methods.epochs_table),
    "few-labels": ("few-labels", methods.labels_table),
    "training": ("training", training.table),
    "quantization": ("quantization", quantization.table),
    "twelve-layers": ("twelve-layers", quantization.table),
    "default-bits": ("default-bits", models.default_table),
    "gate": ("gate", gate.table),
    "runtimes": ("runtimes", runtimes.table),
    "runtimes-deep": ("runtimes-deep", runtimes.table),
    "runtimes-gpu": ("runtimes-gpu", runtimes.table),
    "serving": ("serving", serving.table),
    "serving-long": ("serving", serving.long_table),
    "serving-gpu": ("serving-gpu", serving.gpu_table),
    "startup": ("startup", startup.table),
    "soak": ("soak", soak.table),
    "bad-clients": ("bad-clients", bad_clients.table),
    "pruning": ("pruning", pruning.table),
    "pretraining": ("pretraining", pretraining.table),
    "memory": ("memory", memory.table),
    "rivals": ("rivals", rivals.table),
    "cascade": ("cascade", models.cascade_table),
    "scoring": ("scoring", scoring.table),
}
"""Name of a table -> name of its results, and what makes it of them."""


def tolerances_table() -> Table:
    """Bounds of the gate for the commonest precisions."""
    precisions = ("float32", "float16", "int8", "int4", "served")
    rows = []
    for check in CHECKS:
        bounds = (getattr(TOLERANCES[name], check.bound) for name in precisions)
        cells = [DASH if bound is None else f"{bound:g}" for bound in bounds]
        if any(cell != DASH for cell in cells):
            rows.append([f"`{check.figure}`, at {'most' if check.at_most else 'least'}", *cells])
    return Table(["Check", *precisions], rows)


STEPS_OF_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "Students from its layers": ("student",),
    "Prune heads, neurons": ("prune heads", "prune neurons"),
    "Prune layers": ("prune layers",),
    "Fused attention": ("fuse", "quantize fused"),
}
ONE_STEP_LEFT = "in float alone"
"""Of a graph: fused attention, and not in 8 bits."""


def families_table() -> Table:
    """Steps that families of encoders go through, and the reasons where they do not."""
    names: dict[tuple[str, ...], list[str]] = {}
    reasons: dict[str, int] = {}

    def cell(name: str, steps: Sequence[str]) -> str:
        first, *others = (STEPS[step](name) for step in steps)
        if not first:
            return ONE_STEP_LEFT if any(others) else "yes"
        return f"no [{reasons.setdefault(first, len(reasons) + 1)}]"

    for name in FAMILIES:
        row = tuple(cell(name, steps) for steps in STEPS_OF_COLUMNS.values())
        names.setdefault(row, []).append(f"`{name}`")
    rows = [[", ".join(own), *row] for row, own in names.items()]
    note = "; ".join(f"[{number}] {reason}" for reason, number in reasons.items())
    return Table(["`model_type`", *STEPS_OF_COLUMNS], rows, f"{note}.")


TESTS = ROOT / "tests" / "serve"
OF_FAULTS = ("door/test_real_engines.py", "door/test_process.py")
"""Files whose every test has a row."""
ATTACKS = TESTS / "door" / "test_attacks.py"
DICTIONARIES = ("HTTP_ATTACKS", "GRPC_ATTACKS")


def faults_table() -> Table:
    """Faults and attacks, and how the server responds to each, as the tests of them say.

    A test says its row itself: `@pytest.mark.fault("the fault", "what happens")`. So no row is
    without a test. The sources are read and not imported: their attacks are hundreds of megabytes.

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


OF_THE_PRODUCT: Mapping[str, Callable[[], Table]] = {
    "tolerances": tolerances_table,
    "families": families_table,
    "faults": faults_table,
    "attacks": attacks_table,
}
NAMES = (*MEASURED, *OF_THE_PRODUCT)


def made(name: str) -> str:
    """Return a table as Markdown, with the raw file of what was measured.

    Raises:
        ConfigError: there is no such table, or no results of it.
    """
    if name in OF_THE_PRODUCT:
        return OF_THE_PRODUCT[name]().markdown()
    if name not in MEASURED:
        raise ConfigError(f"no table {name!r}. There are {', '.join(NAMES)}.")
    results, write = MEASURED[name]
    file = newest(results)
    table = write(read_runs(file))
    raw = f"{file.stem[:10]}, raw: `benchmarks/results/{file.name}`."
    return Table(table.headings, table.rows, f"{table.note} {raw}").markdown()


def pages() -> list[Path]:
    """Return the pages that may have tables."""
    folders = (ROOT / "docs", ROOT / "benchmarks" / "reports")
    return [ROOT / "README.md", *(path for each in folders for path in sorted(each.rglob("*.md")))]


def rewritten(text: str) -> str:
    """Return the text of a page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{made(found[2])}{found[3]}", text)


def run(
    check: Annotated[bool, typer.Option(help="write nothing; exit 1 if one is stale")] = False,
) -> None:
    """Write the tables of the pages."""
    stale = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = rewritten(before)
        if after != before:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(after, encoding="utf-8")
    print(*stale, sep="\n")
    if check and stale:
        print("out of date: run `python -m benchmarks tables`")
        raise typer.Exit(1)
