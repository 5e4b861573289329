"""The table of float artifacts over runtimes, from its raw result."""

from __future__ import annotations

from pathlib import Path

from benchmarks.float_parity import FloatParity, FloatParityBenchmark
from bertender.core.processors import processor_name
from bertender.measure.parity import Parity
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.report.cells import DASH, markdown_rows

__all__ = ["float_parity_block"]

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


def float_parity_block(file: str, path: Path) -> str:
    """Return a row for each artifact and runtime, and how to read it."""
    result = FloatParityBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    heads, *cells = ([(cell,) for cell in row] for row in (HEADINGS, *map(_cells, result.rows)))
    lines = markdown_rows(heads, cells, [2 <= place < 8 for place in range(len(HEADINGS))])
    measured = dict.fromkeys((DEFAULT_RUNTIME, *(row.parity.runtime for row in result.rows)))
    packages = dict.fromkeys(RUNTIMES[name].package for name in measured if name)
    versions = (f"{name} {result.environment.versions.get(name, DASH)}" for name in packages)
    conditions = (
        "Each file against itself in ONNX Runtime: held-out texts alone, in batches of two sizes, "
        "and texts of one word and over-long ones. A logit's difference is a share of the largest "
        "logit. Those of the median and of the 95th percentile are in spreads of the logits over "
        "the texts, and like decided labels (no near-ties) and the score they are of the worst "
        f"arrangement. {processor_name(result.environment)}; {', '.join(versions)}."
    )
    return "\n".join([*lines, "", conditions, "", f"Raw: `{file}`", ""])


def _cells(row: FloatParity) -> list[str]:
    parity, allowed = row.parity, row.parity.tolerance
    assert parity.runtime is not None, "of a float artifact that was exported"
    change = parity.score_change
    return [
        f"{row.task}, {row.layers} layers, {row.texts} texts",
        f"{RUNTIMES[parity.runtime].title} (`{row.tolerance}`)",
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
