"""The tables of float artifacts over runtimes, from their raw results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.float_parity.measuring import FloatParity, FloatParityBenchmark
from bertender.core.processors import processor_name
from bertender.measure.parity import Parity
from bertender.measure.tolerances import TOLERANCES
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.report.cells import DASH, markdown_rows

__all__ = ["float_parity_block", "verified_block"]

HEADINGS = (
    "Model",
    "Runtime (row of the gate's tolerances)",
    "Largest difference of a logit, allowed",
    "Median text, allowed",
    "95th percentile, allowed",
    "Other labels, of all",
    "Other labels, of decided ones",
    "Score, points",
    "Passes",
)
READING = (
    "held-out texts alone, in batches of two sizes, and texts of one word and over-long ones. A "
    "logit's difference is a share of the largest logit. Those of the median and of the 95th "
    "percentile are in spreads of the logits over the texts, and like decided labels (no "
    "near-ties) and the score they are of the worst arrangement."
)


def float_parity_block(file: str, path: Path) -> str:
    """Return a row for each artifact and runtime, and how to read it."""
    result = FloatParityBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    lines = _table(map(_cells, result.rows))
    measured = dict.fromkeys((DEFAULT_RUNTIME, *(row.parity.runtime for row in result.rows)))
    packages = dict.fromkeys(RUNTIMES[name].package for name in measured if name)
    versions = (f"{name} {result.environment.versions.get(name, DASH)}" for name in packages)
    conditions = (
        f"Each file against itself in ONNX Runtime: {READING} {processor_name(result.environment)}"
        f"; {', '.join(versions)}."
    )
    return "\n".join([*lines, "", conditions, "", f"Raw: `{file}`", ""])


def verified_block(files: Mapping[str, Path]) -> str:
    """Return a row for each result of `bertender verify --out`, and how to read it."""
    results = (path.read_text(encoding="utf-8") for path in files.values())
    lines = _table(map(_verified_cells, map(Parity.model_validate_json, results)))
    raw = ", ".join(f"`{file}`" for file in files)
    return "\n".join([*lines, "", f"Against ONNX Runtime: {READING}", "", f"Raw: {raw}", ""])


def _table(rows: Iterable[list[str]]) -> list[str]:
    heads, *cells = ([(cell,) for cell in row] for row in (HEADINGS, *rows))
    return markdown_rows(heads, cells, [2 <= place < 8 for place in range(len(HEADINGS))])


def _cells(row: FloatParity) -> list[str]:
    return [
        f"{row.task}, {row.layers} layers, {row.texts} texts",
        f"{_title(row.parity)} (`{row.tolerance}`)",
        *_figures(row.parity),
    ]


def _verified_cells(parity: Parity) -> list[str]:
    model = f"{parity.candidate} against {parity.reference}, {parity.texts} texts"
    (tolerance,) = (name for name, row in TOLERANCES.items() if row == parity.tolerance)
    return [model, f"{_title(parity)} (`{tolerance}`)", *_figures(parity)]


def _title(parity: Parity) -> str:
    assert parity.runtime is not None, "of a float artifact that was exported"
    return RUNTIMES[parity.runtime].title


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
