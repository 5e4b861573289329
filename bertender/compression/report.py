"""The table of a compression, and the sentence that says which model to deploy and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bertender.compression.candidates import Candidate
from bertender.compression.records import CandidateResult, CompressionReport
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.report.cells import DASH, Cell, captioned_table, markdown_rows, number, short
from bertender.report.pareto import pareto_front

__all__ = [
    "SHOWN_PREDICTED",
    "markdown_report",
    "notes",
    "sentence",
    "serve_command",
    "terminal_report",
]

HEADINGS: tuple[Cell, ...] = (
    ("Candidate",),
    ("MB",),
    ("ms",),
    ("Front",),
    ("Rounds",),
    ("8 bits",),
    ("Held out",),
    ("Note",),
)
NUMERIC = (False, True, True, False, True, True, True, False)
SHOWN_PREDICTED = 12
"""Candidates in the table that were only predicted; the JSON has all."""
ON_FRONT = "yes"


def terminal_report(report: CompressionReport) -> Table:
    """Render the candidates for a terminal: the trained ones first, the best at the top."""
    title = f"{report.task}: {len(report.candidates)} candidates"
    table = captioned_table([title, *notes(report)])
    for (heading,), right in zip(HEADINGS[:-1], NUMERIC, strict=False):
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for *cells, _ in _rows(report):  # the notes, which are sentences, are in Markdown and JSON
        table.add_row(*(Text(" ".join(cell)) for cell in cells))
    return table


def markdown_report(report: CompressionReport) -> str:
    """Return the table and its notes as Markdown."""
    lines = markdown_rows(HEADINGS, _rows(report), NUMERIC)
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(report))]) + "\n"


def notes(report: CompressionReport) -> list[str]:
    """Return the lines below the table: what was predicted, how well, and what chose."""
    teacher = f"teacher {report.teacher_mb:.1f} MB, {report.teacher_ms:.2f} ms in PyTorch"
    chosen = f"chosen on {_chosen_on(report)}"
    lines = [f"{teacher}; {chosen}", *_agreement(report)]
    predicted_only = sum(not each.rounds for each in report.candidates)
    left = max(predicted_only - _shown_predicted(report), 0)
    lines += [f"left out: {name}: {why}" for name, why in report.obstacles.items()]
    read = (
        "~: predicted, or a probe; Front: not dominated by another candidate of its start in size, "
        "time, weights left in its layers, whole vocabulary, and order of the variants; Rounds, 8 "
        "bits: on the texts to choose by, before and after"
    )
    return [read, *lines, *([f"{left} more candidates were predicted"] if left else [])]


def sentence(report: CompressionReport) -> str:
    """Return which model to deploy and why, or what the plan would train."""
    if report.verdict == "none holds":
        return "No trained candidate holds the limits as measured."
    best = report.best
    if best is None or best.score is None:
        fitting = sum(each.fits for each in report.candidates)
        return (
            f"{fitting} of {len(report.candidates)} candidates are expected to hold the "
            "limits. Nothing was trained."
        )
    cost, teacher = best.cost, report.teacher_score
    runtime = best.candidate.runtime
    ran = f" in {RUNTIMES[runtime].title}" if runtime != DEFAULT_RUNTIME else ""
    share = (
        f", {best.score.value / teacher.value:.1%} of the teacher's"
        if teacher is not None and teacher.value > 0
        else ""
    )
    return (
        f"{_verdict(report)} {best.candidate.name}: {report.metric} {best.score.value:.3f} "
        f"[{best.score.low:.3f}, {best.score.high:.3f}]{share}, {cost.model_mb:.2f} MB "
        f"({report.teacher_mb / cost.model_mb:.0f} times smaller), {cost.single_ms:.2f} ms for a "
        f"text{ran} ({report.teacher_ms / cost.single_ms:.0f} times as fast as the teacher in "
        "PyTorch). It holds the limits as measured; of the candidates that do, it went furthest on "
        "the texts to choose by."
    )


def serve_command(report: CompressionReport, model: Path) -> str:
    """Return the command that serves the chosen model, in the runtime that it was timed in."""
    runtime = report.best.candidate.runtime if report.best else DEFAULT_RUNTIME
    elsewhere = f" --runtime {runtime}" if runtime != DEFAULT_RUNTIME else ""
    return f"bertender serve {model}{elsewhere}"


def _verdict(report: CompressionReport) -> str:
    if report.verdict == "met":
        return "Deploy"
    return (
        f"min_score={report.config.min_score:g} is not reached. The best is"
        if report.config.min_score is not None
        else "The best is"
    )


def _chosen_on(report: CompressionReport) -> str:
    if report.chosen_on == "selection":
        return "texts set apart; the held-out texts chose nothing"
    return "the held-out texts, which flatters the score: no texts were set apart (--select)"


def _agreement(report: CompressionReport) -> Iterable[str]:
    agreement = report.agreement
    if agreement.models:
        yield (
            f"measured over predicted, {agreement.models} models: size "
            f"{_spread(agreement.size)}, time {_spread(agreement.time)}"
        )


def _spread(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _rows(report: CompressionReport) -> list[tuple[Cell, ...]]:
    front, marks = _front(report), _marks(report)
    trained = [each for each in report.candidates if each.rounds]
    shown = [*trained, *_predicted_only(report, front, marks)[: _shown_predicted(report)]]
    return [_row(each, marks.get(each.candidate), each.candidate in front) for each in shown]


def _shown_predicted(report: CompressionReport) -> int:
    """Return how many candidates that were only predicted are shown: all that a plan trains."""
    return max(SHOWN_PREDICTED, len(_marks(report)))


def _marks(report: CompressionReport) -> dict[Candidate, str]:
    """Return what is said of candidates beside their names: the chosen one; in a plan, entrants."""
    if report.verdict == "planned":
        return {each.candidate: "to train" for each in report.candidates if each.enters}
    return {report.best.candidate: "chosen"} if report.best else {}


def _front(report: CompressionReport) -> set[Candidate]:
    """Return the candidates that no other of their start dominates."""
    by_start: dict[str, dict[Candidate, tuple[float, ...]]] = {}
    order = {variant: place for place, variant in enumerate(report.preferred_variants)}
    for each in report.candidates:
        if each.refused:
            continue
        candidate, cost = each.candidate, each.cost
        lost = (-candidate.remaining, candidate.vocab, order[candidate.variant])
        of_start = by_start.setdefault(candidate.start.name, {})
        of_start[candidate] = (cost.model_mb, cost.single_ms, *lost)
    return {candidate for costs in by_start.values() for candidate in pareto_front(costs)}


def _predicted_only(
    report: CompressionReport, front: Collection[Candidate], marks: Collection[Candidate]
) -> Sequence[CandidateResult]:
    """Return the candidates that were not trained, those to train first, then those that fit."""

    def place(result: CandidateResult) -> tuple[bool, bool, bool, float]:
        candidate = result.candidate
        left = -candidate.remaining
        return candidate not in marks, not result.fits, candidate not in front, left

    return sorted((each for each in report.candidates if not each.rounds), key=place)


def _row(result: CandidateResult, mark: str | None, is_on_front: bool) -> tuple[Cell, ...]:
    cost, name = result.cost, result.candidate.name
    about = "" if result.measured else "~"
    scores = ", ".join(f"{each.score:.3f}" for each in result.rounds)
    return (
        (f"{name} ({mark})" if mark else name,),
        (about + short(cost.model_mb),),
        (about + short(cost.single_ms),),
        (ON_FRONT if is_on_front else "",),
        (scores or DASH,),
        (number(result.choice),),
        (number(result.score.value if result.score else None),),
        (result.left_out or "",),
    )
