"""Results of `make demo` in words, and those of its first recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.words import paragraph, ratio
from bertender.core.environment import Environment
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import speedup_over_processes
from bertender.metrics.records import Change

__all__ = ["demo_reading"]


def demo_reading(files: Mapping[str, Path]) -> str:
    """Return the scores of the demo's models in words.

    Args:
        files: the demo's comparison, and that of an earlier recipe, by the names that are shown.
    """
    comparisons = [_read(path) for path in files.values()]
    now, earlier = ({row.name: row for row in each.rows} for each in comparisons)
    file, earlier_file = files
    teacher, small = now["teacher"], now["student-int8"]
    return paragraph(
        f"On {teacher.score.n} held-out sentences the bag of words scores "
        f"{now['bag-of-words'].score.value:.3f}, the teacher {teacher.score.value:.3f}; the "
        f"student differs from it by {points(_change(now['student']))} points, the 8-bit student "
        f"by {points(_change(small))} at {_speedup(teacher, small)} the teacher's speed (`{file}`: "
        f"{_machine(comparisons[0].circumstances.environment)}; brackets are intervals).",
        f"The student of the first recipe, of {_millions(earlier['student'])}M "
        f"parameters where this one has {_millions(now['student'])}M, changed "
        f"the score by {points(_change(earlier['student']))}, at "
        f"{_speedup(earlier['teacher'], earlier['student-int8'])} the speed in 8 bits "
        f"(`{earlier_file}`).",
    )


def _read(path: Path) -> Comparison:
    return Comparison.model_validate_json(path.read_text(encoding="utf-8"))


def _machine(machine: Environment) -> str:
    amx = any(flag.startswith("amx") for flag in machine.cpu_flags)
    return f"a CPU of {machine.cores} cores {'with' if amx else 'without'} AMX"


def _change(row: ComparisonRow) -> Change:
    assert row.change is not None, "only the first row has none"
    return row.change


def _millions(row: ComparisonRow) -> str:
    assert row.size.parameters is not None, "both rows are models"
    return f"{row.size.parameters / 1e6:.1f}"


def _speedup(teacher: ComparisonRow, small: ComparisonRow) -> str:
    return ratio(speedup_over_processes(teacher.latency.single_ms, small.latency.single_ms))
