"""The records of a compression: what is saved as JSON, and what its table is made from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bertender.compression.candidates import Candidate
from bertender.compression.config import CompressConfig
from bertender.compression.variants import Variant
from bertender.core.config import Record
from bertender.core.environment import Environment
from bertender.measure.load import MachineLoad
from bertender.metrics.scores import Score
from bertender.tasks.task import ChosenOn

__all__ = [
    "MODEL",
    "Agreement",
    "CandidateResult",
    "CompressionReport",
    "Cost",
    "Probe",
    "Round",
]

MODEL = "model"
"""The folder of the chosen model in that of the compression."""


class Cost(Record):
    """Size and latency of a model."""

    model_mb: float = Field(description="of the graph and its weights, in 10^6 bytes")
    single_ms: float = Field(description="of one text of natural length, the median")


class Probe(Record):
    """A model that was made, hardly trained, and measured, so that others can be predicted."""

    candidate: Candidate
    entries: int = Field(description="of its vocabulary")
    cost: Cost


class Round(Record):
    """A training of a candidate on a part of the texts."""

    number: int
    share: float = Field(description="of all texts")
    texts: int = Field(description="with labels")
    unlabelled: int = Field(0, description="texts that only the teacher labelled")
    score: float = Field(description="on the texts to choose by, before quantization")
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
        None, description="score of the quantized model on the texts to choose by"
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
        """Measured where it was, else that of its probe, else predicted."""
        return self.measured or self.probe or self.predicted


class Agreement(Record):
    """How near predictions came to measurements, as ratios measured / predicted."""

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
    variants: tuple[Variant, ...] = Field((), description="of the candidates, in their order")
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
    def preferred_variants(self) -> tuple[Variant, ...]:
        """The variants, the preferred first; of older reports in the order of the candidates."""
        of_candidates = (each.candidate.variant for each in self.candidates)
        return self.variants or tuple(dict.fromkeys(of_candidates))

    @property
    def agreement(self) -> Agreement:
        """Measured over predicted, of all candidates that have both."""
        both = [each for each in self.candidates if each.measured is not None]
        return Agreement(
            models=len(both),
            size=tuple(_ratio(each.cost.model_mb, each.predicted.model_mb) for each in both),
            time=tuple(_ratio(each.cost.single_ms, each.predicted.single_ms) for each in both),
        )


def _ratio(measured: float, predicted: float) -> float:
    return measured / max(predicted, 1e-9)
