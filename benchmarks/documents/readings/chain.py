"""The gains of each step of a chain, and of the whole of it, in numbers of its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.common.points import points
from benchmarks.common.words import above, below, listed, paragraph, ticked
from bertender.measure.comparison import Comparison, ComparisonRow
from bertender.measure.samples import speedup_over_processes
from bertender.report.cells import speedup_cell

__all__ = ["TRIED", "chain_reading"]

TRIED = "benchmarks/results/2026-11-22-sst2-chains-tried-cpu.json"
"""All the chains that were tried, next to each other."""

STEPS = (
    ("teacher", "student"),
    ("student", "pruned"),
    ("pruned", "pruned-onnx"),
    ("pruned-onnx", "pruned-static"),
    ("pruned-onnx", "pruned-dynamic"),
)
FIRST, FIRST_ONNX, LAST = "teacher", "teacher-onnx", "pruned-static"


def chain_reading(files: Mapping[str, Path]) -> str:
    """Return what the steps gain, what the chain does, and what else was tried.

    Args:
        files: the chain's comparison, and that of the chains that were tried.
    """
    first, second = map(_read, files.values())
    chain = {row.name: row for row in first.rows}
    pairs = [(before, after) for before, after in STEPS if {before, after} <= set(chain)]
    return "\n".join(
        [
            "Step by step, for a single text:",
            "",
            *(_step(chain[before], chain[after]) for before, after in pairs),
            "",
            paragraph(_whole(chain), _changes(chain)),
            _others(second, list(files)[1]),
        ]
    )


def _read(path: Path) -> Comparison:
    return Comparison.model_validate_json(path.read_text(encoding="utf-8"))


def _step(before: ComparisonRow, after: ComparisonRow) -> str:
    return (
        f"- `{after.name}` over `{before.name}`: {_ratio(before, after)} as fast, "
        f"{_bytes(before, after)}."
    )


def _ratio(reference: ComparisonRow, candidate: ComparisonRow) -> str:
    samples = reference.latency.single_ms, candidate.latency.single_ms
    return " ".join(speedup_cell(speedup_over_processes(*samples)))


def _bytes(reference: ComparisonRow, candidate: ComparisonRow) -> str:
    shown = f"{_smaller(reference, candidate):.1f}"
    return "as many bytes" if shown == "1.0" else f"{shown} times fewer bytes"


def _smaller(reference: ComparisonRow, candidate: ComparisonRow) -> float:
    return reference.size.artifact_size_bytes / candidate.size.artifact_size_bytes


def _whole(chain: Mapping[str, ComparisonRow]) -> str:
    first, last = chain[FIRST], chain[LAST]
    assert last.change is not None
    return (
        f"The whole chain, `{LAST}`, has {_smaller(first, last):.1f} times fewer bytes than "
        f"`{FIRST}` and {last.score.value / first.score.value:.1%} of its score "
        f"({points(last.change)} points); it is {_ratio(first, last)} as fast as the teacher in "
        f"PyTorch, and {_ratio(chain[FIRST_ONNX], last)} as fast as the teacher's own ONNX graph."
    )


def _changes(chain: Mapping[str, ComparisonRow]) -> str:
    """Return which rows score differently from the first, in words."""
    changes = {name: row.change for name, row in chain.items() if row.change}
    if clear := [*above(changes), *below(changes)]:
        return f"The change of {ticked(clear)} has an interval without 0."
    return "No row's change of score can be distinguished from 0."


def _others(tried: Comparison, file: str) -> str:
    """Return the results of the chains that were tried, in their order, in words."""
    first = next(row for row in tried.rows if row.name == FIRST)
    ends = [row for row in tried.rows if row.name.endswith("-static")]
    scores = (
        f"{row.score.value / first.score.value:.1%} of the score with "
        f"{_smaller(first, row):.1f} times fewer bytes (`{row.name}`)"
        for row in ends
    )
    flattered = tried.circumstances.chosen_on != ("selection",)
    return paragraph(
        f"{len(ends)} chains were tried. In 8 bits with static scales they came to "
        f"{listed(scores)}; `{file}` has all of them next to each other.",
        "The chain above was chosen by the texts that score it, which flatters it."
        if flattered
        else "",
    )
