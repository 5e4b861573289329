"""The end of a compression: the first of the ranking that holds its limits as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.compression.candidates import Candidate
from bertender.compression.chain import Built
from bertender.compression.config import CompressConfig
from bertender.compression.plan import excess
from bertender.compression.probes import cost_of
from bertender.compression.records import CandidateResult
from bertender.compression.training import Training
from bertender.compression.variants import variants_of
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.core.saving import save_result
from bertender.measure.compare import CompareConfig, compare
from bertender.measure.fresh import TimedModel, measure_models
from bertender.measure.latency import LatencyConfig
from bertender.metrics.scores import Score

__all__ = ["Finishing"]


@dataclass(frozen=True)
class Finishing:
    """Quantizes and measures trained candidates."""

    training: Training
    planned: Mapping[Candidate, CandidateResult]
    """All candidates as they were planned."""

    @property
    def config(self) -> CompressConfig:
        """The settings."""
        return self.training.config

    def first_that_holds(
        self, ranked: Sequence[CandidateResult]
    ) -> tuple[list[CandidateResult], CandidateResult | None]:
        """Return all that was tried and what is left of the ranking, and the first that holds.

        What has learned from a part of the texts alone is measured first, and then learns from
        all, unless a budget ended its training: bytes and time hardly depend on what is learned.
        """
        done: list[CandidateResult] = []
        for place, result in enumerate(ranked):
            tried = self._tried(result) if result.rounds else [result]
            if self._holds(tried[0]) and self._learns_from_more(tried[0]):
                tried = [*self._tried(self._whole(tried[0])), *tried[1:]]
            done += tried
            if self._holds(tried[0]):
                return [*done, *ranked[place + 1 :]], tried[0]
        return done, None

    def compared(self, built: Built, runtime: str, place: Path) -> list[Score]:
        """Save the table of a chain, and return the held-out scores: the teacher's first."""
        config = CompareConfig.model_validate({**self._timing(), "runtime": (runtime,)})
        table = compare([*built.artifacts.values()], self.training.task, config)
        save_result(table, place)
        return [row.score for row in table.rows]

    def _holds(self, result: CandidateResult) -> bool:
        return result.measured is not None and excess(result.measured, self.config) <= 1

    def _learns_from_more(self, result: CandidateResult) -> bool:
        return result.rounds[-1].share < 1 and self.config.budget_minutes is None

    def _whole(self, result: CandidateResult) -> CandidateResult:
        again = self.training.train(result, 1.0, result.rounds[-1].number + 1)
        return result.model_copy(update={"rounds": (*result.rounds, again)})

    def _tried(self, result: CandidateResult) -> list[CandidateResult]:
        """Export, quantize and measure, by one variant after the other until one holds the limits.

        What predicts one label everywhere is not tried.

        Returns:
            those that were tried, the last one first.
        """
        if (label := result.rounds[-1].constant) is not None:
            reason = f"predicts {label!r} everywhere"
            marked = {"left_out": reason, "refused": True, "measured": None, "choice": None}
            return [result.model_copy(update=marked)]
        tried: list[CandidateResult] = []
        for planned in self._variants_of(result):
            self.training.announce(f"export and quantize {planned.candidate.name}")
            tried.insert(0, self._measured(result, planned))
            if self._holds(tried[0]):
                break
        return tried

    def _variants_of(self, result: CandidateResult) -> list[CandidateResult]:
        """Return what is trained in every variant that is expected to fit, its own first."""
        made = result.candidate
        others = [made.model_copy(update=dict(each)) for each in variants_of(self.config)]
        known = [self.planned.get(each) for each in dict.fromkeys(others) if each != made]
        fitting = [each for each in known if each is not None and each.fits]
        return [self.planned.get(made, result), *fitting]

    def _measured(self, result: CandidateResult, planned: CandidateResult) -> CandidateResult:
        """Return what was trained as a variant of the plan: measured, or refused."""
        candidate = planned.candidate
        outcome: dict[str, Any] = {"measured": None, "choice": None, "left_out": None}
        try:
            model = self.training.chain(candidate, result.rounds[-1]).last
        except (ConfigError, ModelError, ParityError) as error:
            outcome |= {"left_out": f"refused: {error}", "refused": True}
        else:
            cost = cost_of(model, self._single_ms(model, candidate.runtime))
            beyond = excess(cost, self.config) > 1
            outcome |= {
                "measured": cost,
                "choice": self.training.choice(model, candidate.runtime),
                "left_out": "measured beyond the limits" if beyond else None,
            }
        return planned.model_copy(update={**outcome, "rounds": result.rounds})

    def _single_ms(self, artifact: Artifact, runtime: str) -> float:
        timing = LatencyConfig.model_validate(self._timing())
        model = TimedModel(name=artifact.name, artifact=artifact.path.resolve(), runtime=runtime)
        texts = self.training.task.dev.examples
        return measure_models([model], texts, timing).rows[0].single.p50_ms

    def _timing(self) -> dict[str, Any]:
        names = ("processes", "threads", "seed", "noisy")
        return {name: getattr(self.config, name) for name in names}
