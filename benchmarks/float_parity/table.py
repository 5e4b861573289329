"""The tables of float artifacts over runtimes, from their raw results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.float_parity.measuring import FloatParity, FloatParityBenchmark
from bertender.core.processors import processor_name
from bertender.measure.parity import Parity
from bertender.measure.verify import Verification
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, Runtime
from bertender.report.cells import DASH, markdown_rows

__all__ = ["float_parity_block", "verified_block"]

HEADINGS = (
    "Model",
    "Runtime",
    "Largest difference of a logit, allowed",
    "Median text, allowed",
    "95th percentile, allowed",
    "Other labels, of all",
    "Other labels, of decided ones",
    "Score, points",
    "Passes",
)
HOW_TO_READ = (
    "held-out texts alone, in batches of two sizes, and texts of one word and over-long ones. A "
    "logit's difference is a share of the largest logit. The median and the 95th percentile are in "
    "standard deviations of the logits over the texts. They, the decided labels (without "
    "near-ties) and the score are those of the worst arrangement."
)


def float_parity_block(file: str, path: Path) -> str:
    """Return a row for each artifact and runtime, and how to read it."""
    result = FloatParityBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    lines = _table(map(_cells, result.rows))
    measured = dict.fromkeys((DEFAULT_RUNTIME, *(row.parity.runtime for row in result.rows)))
    packages = dict.fromkeys(RUNTIMES[name].package for name in measured if name)
    versions = (f"{name} {result.environment.versions.get(name, DASH)}" for name in packages)
    machine = processor_name(result.environment)
    conditions = (
        f"Each file against itself in ONNX Runtime: {HOW_TO_READ} {machine}; {', '.join(versions)}."
    )
    return "\n".join([*lines, "", conditions, "", f"Raw: `{file}`", ""])


def verified_block(files: Mapping[str, Path]) -> str:
    """Return a row for each result of `bertender verify --out` on onnx artifacts."""
    texts = (path.read_text(encoding="utf-8") for path in files.values())
    results = [Verification.model_validate_json(text) for text in texts]
    machines = ", ".join(dict.fromkeys(map(_machine, results)))
    conditions = f"Against ONNX Runtime on the CPU: {HOW_TO_READ} Machine: {machines}."
    raw = ", ".join(f"`{file}`" for file in files)
    lines = _table(map(_verified_cells, results))
    return "\n".join([*lines, "", conditions, "", f"Raw: {raw}", ""])


def _machine(parity: Verification) -> str:
    if (where := parity.environment) is None:
        return "not recorded"
    runtime = _runtime(parity)
    device = (where.gpu if runtime.needs_gpu else None) or processor_name(where)
    return f"{device} with {runtime.package} {where.versions.get(runtime.package, DASH)}"


def _table(rows: Iterable[list[str]]) -> list[str]:
    heads, *cells = ([(cell,) for cell in row] for row in (HEADINGS, *rows))
    return markdown_rows(heads, cells, [2 <= place < 8 for place in range(len(HEADINGS))])


def _cells(row: FloatParity) -> list[str]:
    return [
        f"{row.task}, {row.layers} layers, {row.texts} texts",
        f"{_runtime(row.parity).title} (judged as `{row.tolerance}`)",
        *_figures(row.parity),
    ]


def _verified_cells(parity: Parity) -> list[str]:
    model = f"{parity.candidate} against {parity.reference}, {parity.texts} texts"
    return [model, _runtime(parity).title, *_figures(parity)]


def _runtime(parity: Parity) -> Runtime:
    assert parity.runtime is not None, "of an onnx artifact"
    return RUNTIMES[parity.runtime]


def _figures(parity: Parity) -> list[str]:
    allowed, change = parity.tolerance, parity.score_change
    return [
        f"{_share(parity.max_abs_difference, parity)}, {_bound(allowed.max_abs)}",
        f"{_bound(parity.median_difference)}, {_bound(allowed.max_median)}",
        f"{_bound(parity.p95_difference)}, {_bound(allowed.max_p95)}",
        _others(parity.agreement),
        _others(parity.decided_agreement),
        DASH if change is None else f"{change:+.1f}",
        "no" if parity.failures else "yes",
    ]


def _share(difference: float | None, parity: Parity) -> str:
    if difference is None or parity.logit_scale is None:
        return DASH
    return _bound(difference / parity.logit_scale)


def _bound(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"


def _others(agreement: float | None) -> str:
    return DASH if agreement is None else f"{1 - agreement:.2%}"
