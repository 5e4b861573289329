"""What a comparison over several runtimes says of the machine that it was made on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bertender.core.processors import processor_name
from bertender.core.runtime_notes import FasterRuntime, RuntimeNote
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import Rounds, speedup_over_processes
from bertender.models.runtimes import RUNTIMES

__all__ = ["runtime_note"]

Samples = Callable[[ComparisonRow], Sequence[Rounds]]


def runtime_note(comparison: Comparison) -> RuntimeNote | None:
    """Return the fastest rows of each runtime against each other, for one text and for batches.

    Only rows of as many parameters as the first ONNX row are compared, so that runtimes are, and
    not models, and only those that the CPU ran; the ratio is of the best row of each. None where
    fewer than two runtimes were timed, the model's size is unknown, or other work disturbed the
    times.
    """
    conditions = comparison.circumstances
    rows = _of_one_model(comparison.rows)
    runtimes = {row.runtime for row in rows if row.runtime is not None}
    if len(runtimes) == 1 or not rows or conditions.config.noisy:
        return None
    batches = f"batches of {conditions.batch_texts}"
    uses: tuple[tuple[str, Samples], ...] = (("one text", _single), (batches, _batch))
    versions = conditions.environment.versions
    packages = (RUNTIMES[name].package for name in sorted(RUNTIMES) if _is_of_cpu(name))
    return RuntimeNote(
        measured_at=conditions.measured_at,
        processor=processor_name(conditions.environment),
        cores=conditions.environment.cores,
        threads=conditions.threads,
        task=conditions.task,
        parameters=rows[0].size.parameters or 0,
        versions={package: versions.get(package, "") for package in packages},
        uses=tuple(_faster(use, samples, rows) for use, samples in uses),
    )


def _of_one_model(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    onnx = [row for row in rows if _is_of_cpu(row.runtime) and row.size.parameters]
    return [row for row in onnx if row.size.parameters == onnx[0].size.parameters]


def _is_of_cpu(runtime: str | None) -> bool:
    return runtime is not None and not RUNTIMES[runtime].needs_gpu


def _faster(use: str, samples: Samples, rows: Sequence[ComparisonRow]) -> FasterRuntime:
    first = rows[0]
    over_first = {
        row.name: speedup_over_processes(samples(first), samples(row)).value for row in rows
    }
    ranked = sorted(rows, key=lambda row: over_first[row.name], reverse=True)
    best = ranked[0]
    other = next(row for row in ranked if row.runtime != best.runtime)
    return FasterRuntime(
        use=use,
        runtime=_runtime_title(best),
        row=_row_title(best),
        other_runtime=_runtime_title(other),
        other_row=_row_title(other),
        speedup=speedup_over_processes(samples(other), samples(best)),
    )


def _single(row: ComparisonRow) -> Sequence[Rounds]:
    return row.latency.single_ms


def _batch(row: ComparisonRow) -> Sequence[Rounds]:
    return row.latency.batch_rounds_ms


def _runtime_title(row: ComparisonRow) -> str:
    assert row.runtime is not None
    return RUNTIMES[row.runtime].title


def _row_title(row: ComparisonRow) -> str:
    return f"{row.name} ({row.precision})"
