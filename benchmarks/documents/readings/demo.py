"""Results of `make demo` in words."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.words import paragraph, ratio
from bertender.core.environment import Environment
from bertender.measure.comparison import Comparison
from bertender.measure.samples import speedup_over_processes
from bertender.report.notes import in_one_sentence

__all__ = ["demo_reading"]

SERVED = "student-int8"


def demo_reading(file: str, path: Path) -> str:
    """Return what the demo's last model gains over its teacher.

    Args:
        file: the demo's comparison, by the name that is shown.
        path: where it lies.
    """
    comparison = Comparison.model_validate_json(path.read_text(encoding="utf-8"))
    rows = {row.name: row for row in comparison.rows}
    teacher, small, words = (rows[name] for name in ("teacher", SERVED, "bag-of-words"))
    assert small.change is not None, "only the first row has none"
    smaller = teacher.size.artifact_size_bytes / small.size.artifact_size_bytes
    faster = speedup_over_processes(teacher.latency.single_ms, small.latency.single_ms)
    return paragraph(
        f"It ends with such a line: **{in_one_sentence(comparison, SERVED)}.** That is "
        f"{smaller:.1f} times smaller and {ratio(faster)} as fast, and on {teacher.score.n} "
        f"held-out sentences the score differs by {points(small.change)} points; a bag of words "
        f"scores {words.score.value:.3f} there (`{file}`: "
        f"{_machine(comparison.circumstances.environment)}; brackets are intervals).",
    )


def _machine(machine: Environment) -> str:
    amx = any(flag.startswith("amx") for flag in machine.cpu_flags)
    return f"a CPU of {machine.cores} cores {'with' if amx else 'without'} AMX"
