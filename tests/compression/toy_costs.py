"""Candidates and costs made up for tests: sums of parts, as real ones nearly are."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.compression.candidates import Candidate, Start, variants_of
from bertender.compression.config import CompressConfig
from bertender.compression.report import (
    CandidateResult,
    CompressionReport,
    Cost,
    Probe,
    Round,
    terminal_report,
)
from bertender.core.machine import environment

WHOLE, SMALLER = 30_000, 8_000
"""Entries of the vocabulary, before and after it is cut."""
TEACHER = Start(name="teacher", layers=6)
ENCODER = Start(name="encoder", layers=3, encoder="an/encoder")
STATIC = Start(name="static", layers=0, method="static")


def candidate(layers: int = 6, start: Start = TEACHER, **changes: object) -> Candidate:
    """A candidate of which nothing is cut, but for the changes."""
    plain = {"heads": 0.0, "ffn": 0.0, "vocab": False, "scheme": "dynamic"}
    return Candidate.model_validate({"start": start, "layers": layers, **plain, **changes})


def cost(of: Candidate) -> Cost:
    """2 MB fixed, 3 a layer and 300 bytes an entry; 0.1 ms fixed and 0.6 a layer."""
    attention, neurons = 1 - of.heads, 1 - of.ffn
    entries = SMALLER if of.vocab else WHOLE
    return Cost(
        model_mb=2 + of.layers * (0.5 + 1.0 * attention + 1.5 * neurons) + 3e-4 * entries,
        single_ms=0.1 + of.layers * (0.1 + 0.3 * attention + 0.2 * neurons),
    )


def probe(of: Candidate) -> Probe:
    """A candidate, measured."""
    return Probe(candidate=of, entries=SMALLER if of.vocab else WHOLE, cost=cost(of))


def result(of: Candidate, **changes: object) -> CandidateResult:
    """A candidate whose prediction is right and fits."""
    return CandidateResult(candidate=of, predicted=cost(of), fits=True).model_copy(update=changes)


def trained(number: int, score: float, share: float, minutes: float) -> Round:
    """A round of training."""
    return Round(number=number, share=share, texts=100, score=score, minutes=minutes)


def plan(results: Sequence[CandidateResult], config: CompressConfig) -> CompressionReport:
    """A report of candidates that were only predicted."""
    return CompressionReport(
        config=config,
        task="sst2",
        metric="accuracy",
        chosen_on="selection",
        teacher_mb=1.0,
        teacher_ms=1.0,
        variants=tuple(variants_of(config)),
        candidates=tuple(results),
        probes=(),
        minutes=0.0,
        environment=environment(),
    )


def shown(report: CompressionReport) -> dict[str, str]:
    """The candidates of a report's table, by their names and marks -> whether on the front."""
    names, _, _, front, *_ = (map(str, column.cells) for column in terminal_report(report).columns)
    return dict(zip(names, front, strict=True))
