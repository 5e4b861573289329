"""The records of a compression, its table, and the sentence that says which model to deploy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field
from rich.table import Table
from rich.text import Text

from bertender.comparison.table import DASH, captioned_table, number, pareto_front, short
from bertender.compression.candidates import Candidate, Variant
from bertender.compression.config import CompressConfig
from bertender.core.config import Record
from bertender.core.findings import ChosenOn
from bertender.core.machine import Environment, MachineLoad
from bertender.metrics.metric import Score
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES

MODEL = "model"
"""Folder of the chosen model within the compression's folder."""


class Cost(Record):
    """Size and latency of a model."""

    model_mb: float = Field(description="of the graph and its weights, in 10^6 bytes")
    single_ms: float = Field(description="of one text of natural length, the median")


class Probe(Record):
    """A model that was made, hardly trained and measured to predict others."""

    candidate: Candidate
    entries: int = Field(description="of its vocabulary")
    cost: Cost


class Round(Record):
    """A training of a candidate on a part of the texts."""

    number: int
    share: float = Field(description="of all texts")
    texts: int = Field(description="with labels")
    unlabelled: int = Field(0, description="texts that only the teacher labelled")
    score: float = Field(description="on the validation texts, before quantization")
    minutes: float
    constant: str | None = Field(
        None, description="the one label that it predicts on these, where it learned nothing else"
    )


class CandidateResult(Record):
    """A candidate: predicted, and perhaps trained and measured."""

    candidate: Candidate
    predicted: Cost
    probe: Cost | None = Field(
        None, description="of itself, hardly trained, where a probe was made of this very candidate"
    )
    fits: bool = Field(description="whether the probe, or else the prediction, holds the limits")
    rounds: tuple[Round, ...] = ()
    measured: Cost | None = Field(None, description="None where it was not quantized")
    choice: float | None = Field(
        None, description="score of the quantized model on the validation texts"
    )
    score: Score | None = Field(None, description="on the held-out texts; of the chosen one alone")
    enters: bool = Field(False, description="whether the plan is to train it")
    refused: bool = Field(
        False,
        description="whether a gate refused it, it predicts one label everywhere, or no probe of "
        "it could be made",
    )
    left_out: str | None = Field(None, description="why it was not trained, or went no further")

    @property
    def cost(self) -> Cost:
        """The measured cost if there is one, else that of its probe, else the predicted one."""
        return self.measured or self.probe or self.predicted


class Agreement(Record):
    """Agreement of predictions with measurements, as ratios measured / predicted."""

    models: int
    size: tuple[float, ...]
    time: tuple[float, ...]


class CompressionReport(Record):
    """A compression: limits, candidates, the chosen one, and how it was chosen."""

    config: CompressConfig
    task: str
    metric: str
    chosen_on: ChosenOn
    teacher_mb: float
    teacher_ms: float
    teacher_score: Score | None = None
    variants: tuple[Variant, ...] = Field((), description="of the candidates, the preferred first")
    candidates: tuple[CandidateResult, ...]
    probes: tuple[Probe, ...]
    obstacles: dict[str, str] = Field(
        default_factory=dict,
        description="start and variant, by their names -> why it has no candidate",
    )
    chosen: str | None = Field(None, description="name of the candidate; None of a plan alone")
    verdict: Literal["planned", "none holds", "met", "score not met"] = "planned"
    minutes: float = Field(description="of training, probes left out")
    environment: Environment
    load: MachineLoad | None = None

    @property
    def best(self) -> CandidateResult | None:
        """The chosen candidate; None of a plan."""
        return next((each for each in self.candidates if each.candidate.name == self.chosen), None)

    @property
    def agreement(self) -> Agreement:
        """Measured over predicted costs of all candidates that have both."""
        both = [each for each in self.candidates if each.measured is not None]
        return Agreement(
            models=len(both),
            size=tuple(each.cost.model_mb / max(each.predicted.model_mb, 1e-9) for each in both),
            time=tuple(each.cost.single_ms / max(each.predicted.single_ms, 1e-9) for each in both),
        )


HEADINGS = ("Candidate", "MB", "ms", "Front", "Rounds", "8 bits", "Held out")
ON_THE_LEFT = ("Candidate", "Front")
SHOWN_PREDICTED = 12
"""Only predicted candidates in the table; the JSON has all."""
ON_FRONT = "yes"


def terminal_report(report: CompressionReport) -> Table:
    """Render the candidates for a terminal: the trained ones first, the best at the top."""
    front, marks = _front(report), _marks(report)
    trained = [each for each in report.candidates if each.rounds]

    def place(result: CandidateResult) -> tuple[bool, bool, bool, float]:
        """Return the sort key: candidates to train first, then those that fit."""
        candidate = result.candidate
        return (
            candidate not in marks,
            not result.fits,
            candidate not in front,
            -candidate.remaining,
        )

    predicted = sorted((each for each in report.candidates if not each.rounds), key=place)
    shown = max(SHOWN_PREDICTED, len(marks))  # all that a plan would train
    title = f"{report.task}: {len(report.candidates)} candidates"
    table = captioned_table([title, *_notes(report, max(len(predicted) - shown, 0))])
    for heading in HEADINGS:
        justify: Literal["left", "right"] = "left" if heading in ON_THE_LEFT else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for result in (*trained, *predicted[:shown]):
        cost, name, mark = result.cost, result.candidate.name, marks.get(result.candidate)
        about = "" if result.measured else "~"
        cells = (
            f"{name} ({mark})" if mark else name,
            about + short(cost.model_mb),
            about + short(cost.single_ms),
            ON_FRONT if result.candidate in front else "",
            ", ".join(f"{each.score:.3f}" for each in result.rounds) or DASH,
            number(result.choice),
            number(result.score.value if result.score else None),
        )
        table.add_row(*map(Text, cells))
    return table


def _notes(report: CompressionReport, not_shown: int) -> Iterable[str]:
    """Yield the lines below the table: predictions, their errors, and the choice."""
    yield (
        "~: predicted, or a probe; Front: not dominated by another candidate of its start in size, "
        "time, weights left in its layers, whole vocabulary, and order of the variants; Rounds, 8 "
        "bits: on the validation texts, before and after"
    )
    chosen_on = (
        "the held-out texts, which flatters the score: there are no validation texts (--select)"
    )
    if report.chosen_on == "selection":
        chosen_on = "validation texts; the held-out texts chose nothing"
    yield (
        f"teacher {report.teacher_mb:.1f} MB, {report.teacher_ms:.2f} ms in PyTorch; chosen on "
        f"{chosen_on}"
    )
    agreement = report.agreement
    if agreement.models:
        size, time = (
            f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in (agreement.size, agreement.time)
        )
        yield f"measured over predicted, {agreement.models} models: size {size}, time {time}"
    yield from (f"left out: {name}: {why}" for name, why in report.obstacles.items())
    if not_shown:
        yield f"{not_shown} more candidates were predicted"


def _marks(report: CompressionReport) -> dict[Candidate, str]:
    """Return the marks beside candidates: the chosen one; in a plan, those to train."""
    if report.verdict == "planned":
        return {each.candidate: "to train" for each in report.candidates if each.enters}
    return {report.best.candidate: "chosen"} if report.best else {}


def _front(report: CompressionReport) -> set[Candidate]:
    """Return the candidates that no other of their start dominates."""
    by_start: dict[str, dict[Candidate, tuple[float, ...]]] = {}
    order = {variant: place for place, variant in enumerate(report.variants)}
    for each in report.candidates:
        if each.refused:
            continue
        candidate, cost = each.candidate, each.cost
        lost = (-candidate.remaining, candidate.vocab, order[candidate.variant])
        of_start = by_start.setdefault(candidate.start.name, {})
        of_start[candidate] = (cost.model_mb, cost.single_ms, *lost)
    return {candidate for costs in by_start.values() for candidate in pareto_front(costs)}


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
    verdict, least = "Deploy", report.config.min_score
    if report.verdict != "met":
        missed = f"min_score={least:g} is not reached. " if least is not None else ""
        verdict = f"{missed}The best is"
    cost, teacher = best.cost, report.teacher_score
    runtime = best.candidate.runtime
    ran = f" in {RUNTIMES[runtime].title}" if runtime != DEFAULT_RUNTIME else ""
    share = ""
    if teacher is not None and teacher.value > 0:
        share = f", {best.score.value / teacher.value:.1%} of the teacher's"
    return (
        f"{verdict} {best.candidate.name}: {report.metric} {best.score.value:.3f} "
        f"[{best.score.low:.3f}, {best.score.high:.3f}]{share}, {cost.model_mb:.2f} MB "
        f"({report.teacher_mb / cost.model_mb:.0f} times smaller), {cost.single_ms:.2f} ms for a "
        f"text{ran} ({report.teacher_ms / cost.single_ms:.0f} times as fast as the teacher in "
        "PyTorch). It holds the limits as measured; of the candidates that do, it went furthest on "
        "the validation texts."
    )


def serve_command(report: CompressionReport, model: Path) -> str:
    """Return the command that serves the chosen model in the runtime of its timing."""
    runtime = report.best.candidate.runtime if report.best else DEFAULT_RUNTIME
    elsewhere = f" --runtime {runtime}" if runtime != DEFAULT_RUNTIME else ""
    return f"bertender serve {model}{elsewhere}"
