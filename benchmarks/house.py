"""Figures of the source tree: files, lines, imports, indirection, pages, cost of commands.

Code lines are lines without blanks, comments and docstrings.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
import statistics
import sys
import threading
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from compileall import compile_dir
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any, Literal

import typer
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from benchmarks.harness import MeasuredCommandError, Used, used_by
from bertender.cli.main import COMMANDS, build_app
from bertender.core.files import CACHE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("bertender", "distill", "export", "quantize", "serve")
LISTS = ("tasks", "methods", "schemes", "recipes")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A Python file and what can be counted in it."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def code_lines(self) -> set[int]:
        lines: set[int] = set()
        silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in silent | {tokenize.ENDMARKER}:
                lines |= set(range(token.start[0], token.end[0] + 1))
        for text in self.docstrings():
            lines -= set(range(text.lineno, (text.end_lineno or 0) + 1))
        return lines

    def docstrings(self) -> Iterator[ast.stmt]:
        """Yield the docstrings of modules, classes and functions, and of attributes (PEP 257)."""
        for node in self.nodes:
            if not isinstance(node, ast.Module | ast.ClassDef | Function):
                continue
            for before, each in zip([None, *node.body], node.body, strict=False):
                of_attribute = isinstance(before, ast.Assign | ast.AnnAssign) and not isinstance(
                    node, Function
                )
                if (before is None or of_attribute) and isinstance(each, ast.Expr):
                    value = each.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield each

    def lines_of(self, *kinds: type[ast.AST]) -> int:
        """Return the number of code lines of nodes of these kinds."""
        return len(
            {
                line
                for node in self.nodes
                if isinstance(node, kinds)
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]
            }
            & self.code_lines
        )

    @property
    def dunder_all_lines(self) -> int:
        return sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        )

    def imported_modules(self, known: set[str]) -> set[str]:
        """The product modules that this file imports, at its head or inside functions."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (below & known) or {node.module}
        return (found & known) - {self.module}


def sources(*folders: str) -> list[Source]:
    return [Source(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def one_caller(files: list[Source]) -> tuple[list[tuple[str, str]], int]:
    """The private functions that their file names once, and the number of all functions."""
    once: list[tuple[str, str]] = []
    functions = 0
    for file in files:
        used = Counter(
            getattr(node, "id", None) or getattr(node, "attr", "") for node in file.nodes
        )
        for node in file.nodes:
            if isinstance(node, Function):
                functions += 1
                if re.match("_[^_]", node.name) and used[node.name] == 1:
                    once.append((f"{file.name}:{node.lineno}", node.name))
    return once, functions


def function_fields(files: list[Source]) -> list[str]:
    """Annotated class fields that hold a function."""
    return [
        f"{file.name}:{field.lineno}"
        for file in files
        for node in file.nodes
        if isinstance(node, ast.ClassDef)
        and not any("Protocol" in ast.dump(base) for base in node.bases)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and "Callable" in ast.dump(field.annotation)
    ]


def code_strings(files: list[Source]) -> list[str]:
    """Strings that name a module of the product, `package.module` or `package.module:NAME`."""
    known = {file.module for file in files if "." in file.module}
    return [
        f"{file.name}:{node.lineno} {node.value}"
        for file in files
        for node in file.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.partition(":")[0] in known
    ]


def circles(files: list[Source]) -> list[list[str]]:
    """Groups of files that import each other, directly or by way of others."""
    modules = [file.module for file in files]
    imported = [file.imported_modules({*modules}) for file in files]
    arrows = csr_array([[module in own for module in modules] for own in imported])
    groups: dict[int, list[str]] = {}
    _, labels = connected_components(arrows, connection="strong")
    for module, label in zip(modules, labels.tolist(), strict=True):
        groups.setdefault(label, []).append(module)
    return [group for group in groups.values() if len(group) > 1]


def words_of_pages() -> int:
    """Words of README, CONTRIBUTING, CHANGELOG and docs, without what is generated.

    A word has a letter or a digit: bars and rules of tables are none.
    """
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += [p for p in (ROOT / "docs").rglob("*.md") if p.stem not in ("reference", "api")]
    return sum(len(re.findall(r"\S*\w\S*", page.read_text())) for page in pages)


def costs_of_help() -> dict[str, Used]:
    """Return what each command's help uses, and each list, in a fresh process.

    The product is compiled before, as it is after a user's first command.
    """
    for package in PRODUCT:
        compile_dir(ROOT / package, quiet=1)
    commands = [*((name, "--help") for name in COMMANDS), *((name,) for name in LISTS)]
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    return {" ".join(words): used_by(*words, cwd=ROOT, env=compiled) for words in commands}


class Profile:
    """The product files whose functions run, in this thread and those that start later.

    Functions that run while a module is imported do not count.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.local = threading.local()
        self.folders = tuple(f"{ROOT / package}{os.sep}" for package in PRODUCT)

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        imports = getattr(self.local, "imports", 0)
        if code.co_name == "<module>":
            self.local.imports = imports + {"call": 1, "return": -1}.get(event, 0)
            return
        # the body of a class runs as a function does, but is not optimized
        is_function = event == "call" and code.co_flags & inspect.CO_OPTIMIZED
        if is_function and not imports and code.co_filename.startswith(self.folders):
            self.files.add(str(Path(code.co_filename).relative_to(ROOT)))


Scenario = Callable[[Path, Profile], object]


def executed(scenario: Scenario, folder: Path) -> set[str]:
    """Return the product files that a scenario executes, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_profiled, scenario, folder).result()


def _profiled(scenario: Scenario, folder: Path) -> set[str]:
    profile = Profile()
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        scenario(folder, profile)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return profile.files


def prepare(folder: Path, profile: Profile) -> None:
    """Fine-tune a toy teacher on CSV files, and export it."""
    from tests.front import write_csv
    from tests.toy_models import save_encoder
    from tests.toys import toy_task

    task = toy_task()
    for name, split in (("train", task.train), ("dev", task.dev)):
        write_csv(folder / f"{name}.csv", split, task.labels)
    encoder = save_encoder("bert", folder / "encoder")
    data = ("--train", folder / "train.csv", "--dev", folder / "dev.csv")
    training = ("--epochs", 6, "--learning-rate", 3e-3, "--batch-size", 16)
    _command("finetune", "--teacher", encoder, *data, *training, "--out", folder / "teacher")
    _command("export", folder / "teacher", "--out", folder / "onnx")


def distilling(folder: Path, profile: Profile) -> None:
    """`distill --layers 3`."""
    teacher, out = folder / "teacher", folder / "student"
    _command("distill", "--teacher", teacher, "--layers", 3, "--allow-constant", "--out", out)


def quantizing(folder: Path, profile: Profile) -> None:
    """`quantize`, with its gate."""
    _command("quantize", folder / "onnx", "--out", folder / "int8")


def answering(folder: Path, profile: Profile) -> None:
    """A request in the backend, whose start does not count."""
    from bertender.core.artifact import Artifact
    from serve.config import ServeConfig
    from tests.serve.triton_stand_in import request_of, responses_of, running_backend

    artifact = Artifact.load(folder / "onnx")
    with running_backend(artifact, folder / "models", ServeConfig()) as backend:
        profile.files.clear()
        responses_of(backend, request_of(("apple pear",)))


def _command(name: str, *words: object) -> None:
    arguments = ["--quiet", name, *map(str, words)]
    with redirect_stdout(io.StringIO()):
        code: Any = build_app(name)(arguments, standalone_mode=False)
    if code:
        raise MeasuredCommandError(f"bertender {' '.join(arguments)}: exit code {code}")


Figure = tuple[str, str, str, bool]
"""(name, value, bound, whether the bound holds)"""


def at_most(name: str, count: int, most: int) -> Figure:
    """Return a figure that has an upper bound."""
    return name, f"{count:,}", f"at most {most:,}", count <= most


def figures_of_source() -> list[Figure]:
    """Figures that are counted without running anything."""
    product, benchmarks = sources(*PRODUCT), sources("benchmarks")
    lines = [len(file.code_lines) for file in product]
    total = sum(lines)
    # a package's empty face says nothing about how long a file is
    median = statistics.median(count for count in lines if count > 3)
    imports = sum(file.lines_of(ast.Import, ast.ImportFrom) for file in product)
    dunder_all = sum(f.dunder_all_lines for f in product if not f.name.endswith("__init__.py"))
    once, functions = one_caller(product)
    once_shown = f"{len(once)} of {functions:,} ({len(once) / functions:.1%})"
    few_once = len(once) < 0.15 * functions
    results = [p for p in (ROOT / "benchmarks/results").rglob("*") if p.is_file()]
    megabytes = sum(p.stat().st_size for p in results) / 1e6
    results_shown = f"{len(results)}, {megabytes:.1f} MB"
    few_results = len(results) <= 40 and megabytes <= 4
    imports_shown, few_imports = f"{imports:,} ({imports / total:.1%})", imports <= 0.09 * total
    return [
        at_most("product files", len(product), 200),
        ("median code lines a file", f"{median:.0f}", "110 or more", median >= 110),
        at_most("product code lines", total, 30_000),
        ("import lines", imports_shown, "at most 9 %", few_imports),
        at_most("lines of __all__ outside faces", dunder_all, 0),
        ("private functions with one caller", once_shown, "under 15 %", few_once),
        at_most("class fields that are functions", len(function_fields(product)), 19),
        at_most("strings that name code", len(code_strings(product)), 6),
        at_most("circles of files", len(circles(product)), 0),
        at_most("benchmark files", len(benchmarks), 60),
        at_most("benchmark code lines", sum(len(file.code_lines) for file in benchmarks), 4500),
        ("result files", results_shown, "at most 40, 4 MB", few_results),
        at_most("words of pages", words_of_pages(), 25_000),
    ]


def figures_of_commands() -> Iterator[Figure]:
    """Figures that commands are run for: minutes."""
    costs = costs_of_help()
    name, slowest = max(costs.items(), key=lambda cost: cost[1].processor_s)
    shown = f"{slowest.processor_s:.2f} s ({name})"
    yield "slowest help or list", shown, "under 1 s", slowest.processor_s < 1
    name, largest = max(costs.items(), key=lambda cost: cost[1].peak_bytes)
    shown = f"{largest.peak_bytes / 1e6:.0f} MB ({name})"
    yield "largest help or list", shown, "at most 120 MB", largest.peak_bytes <= 120e6
    with TemporaryDirectory() as folder:
        executed(prepare, Path(folder))
        for name, scenario, bound in (
            ("files executed by distill", distilling, 35),
            ("files executed by a request", answering, 6),
            ("files executed by quantize", quantizing, 35),
        ):
            yield at_most(name, len(executed(scenario, Path(folder))), bound)


Listed = Literal["one-caller", "circles", "fields", "strings"]
LISTED: dict[Listed, Callable[[list[Source]], list[str]]] = {
    "one-caller": lambda files: [f"{where} {name}" for where, name in one_caller(files)[0]],
    "circles": lambda files: [" <-> ".join(group) for group in circles(files)],
    "fields": function_fields,
    "strings": code_strings,
}
"""Figure that counts places -> the places."""


def run(
    listed: Annotated[Listed | None, typer.Option("--list", help="places that it counts")] = None,
    of_source: Annotated[bool, typer.Option("--source", help="figures that run nothing")] = False,
) -> None:
    """Print the figures, or the places that one of them counts."""
    if listed:
        print(*LISTED[listed](sources(*PRODUCT)), sep="\n")
        return
    # first: until a child runs its own program, its peak counts the memory of this process
    commands = [] if of_source else [*figures_of_commands()]
    for name, value, bound, holds in (*figures_of_source(), *commands):
        print(f"{name:36} {value:24} {bound:18} {'' if holds else 'NOT KEPT'}".rstrip())


if __name__ == "__main__":
    typer.run(run)
