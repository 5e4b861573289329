"""The table of what a runtime's floats cost in parity, from its raw result."""

from __future__ import annotations

from pathlib import Path

from benchmarks.float_parity import FloatParity, FloatParityBenchmark
from bertender.core.processors import processor_name
from bertender.measure.parity import Parity
from bertender.models.runtimes import RUNTIMES
from bertender.report.cells import DASH, markdown_rows

__all__ = ["float_parity_block"]

HEADINGS = (
    "Model",
    "Runtime",
    "Largest difference of a logit, allowed",
    "Mean, allowed",
    "Median text",
    "Other labels, all and decided",
    "Passes",
)


def float_parity_block(file: str, path: Path) -> str:
    """Return a row for each artifact and runtime, and how to read it."""
    result = FloatParityBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
    heads, *cells = ([(cell,) for cell in row] for row in (HEADINGS, *map(_cells, result.rows)))
    lines = markdown_rows(heads, cells, [2 <= place < 6 for place in range(len(HEADINGS))])
    texts = {row.task: row.parity.texts for row in result.rows}
    counts = ", ".join(f"{count} held-out texts of {task}" for task, count in texts.items())
    packages = dict.fromkeys(RUNTIMES[name].package for name in RUNTIMES)
    versions = (f"{name} {result.environment.versions.get(name, DASH)}" for name in packages)
    conditions = (
        f"{counts}, alone and in batches, against the same file in ONNX Runtime. Differences are "
        "shares of the largest logit; that of the median text is in spreads of the logits over the "
        "texts, in the worst arrangement. Decided are labels that are no near-ties. "
        f"{processor_name(result.environment)}; {', '.join(versions)}."
    )
    return "\n".join([*lines, "", conditions, "", f"Raw: `{file}`", ""])


def _cells(row: FloatParity) -> list[str]:
    parity, allowed = row.parity, row.parity.tolerance
    return [
        f"{row.task}, {row.layers} layers",
        f"{RUNTIMES[parity.runtime or row.tolerance].title} (`{row.tolerance}`)",
        f"{_share(parity.max_abs_difference, parity)}, {_bound(allowed.max_abs)}",
        f"{_share(parity.mean_abs_difference, parity)}, {_bound(allowed.mean_abs)}",
        _bound(parity.median_difference),
        _other_labels(parity),
        "no" if parity.failures else "yes",
    ]


def _share(difference: float | None, parity: Parity) -> str:
    if difference is None or parity.logit_scale is None:
        return DASH
    return _bound(difference / parity.logit_scale)


def _bound(value: float | None) -> str:
    return DASH if value is None else f"{value:.1g}"


def _other_labels(parity: Parity) -> str:
    if parity.agreement is None or parity.decided_agreement is None:
        return DASH
    return f"{1 - parity.agreement:.2%}, {1 - parity.decided_agreement:.2%}"
