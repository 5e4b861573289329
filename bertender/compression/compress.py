"""Compression: one command from a teacher and limits to a model that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertender.comparison.accuracy import check_teacher_varied
from bertender.comparison.compare import compare
from bertender.comparison.latency import TimedModel, measure_models
from bertender.comparison.records import CompareConfig, LatencyConfig
from bertender.comparison.runtimes import check_installed
from bertender.compression.candidates import Candidate, all_candidates, starts_of, variants_of
from bertender.compression.config import CompressConfig
from bertender.compression.plan import (
    Measured,
    Probing,
    check_any,
    check_feasible,
    cost_of,
    decided,
    decided_near_limits,
    entrants,
    excess,
    none_holds,
    predicted,
    timing_of,
    with_trained,
)
from bertender.compression.report import MODEL, CandidateResult, CompressionReport
from bertender.compression.training import Announce, Budget, Built, Training, check_settings, halved
from bertender.core.artifact import (
    Artifact,
    check_not_finished,
    check_writable,
    copy_artifact,
    digest_of,
)
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.core.files import save_result
from bertender.core.machine import environment, processor_name
from bertender.core.machine_load import busiest
from bertender.metrics.scores import Score
from bertender.models.classifier import open_classifier
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.recipes.stage import folder_digest
from bertender.tasks.task import Task

# --- from bertender.compression.finishing
# The end of a compression: the first of the ranking that holds its limits as measured.


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


# --- from bertender.compression.compress
# Compression: one command from a teacher and limits to a model that holds them.
#
# teacher + task + CompressConfig
#   -> probes, measured -> every candidate predicted (`Compression.plan`)
#   -> those near a limit, that would be trained, measured as probes of their own
#   -> some trained by successive halving, scored on the texts to choose by
#   -> the best exported, quantized and measured; the held-out texts score it in the end

REPORT = "report.json"
TABLE = "table.json"
SHAPING = (
    "noisy",
    "threads",
    "unlabelled_texts",
    "vocab_floor",
    "vocab_size",
)
"""Settings that a probe depends on, besides the candidates."""


@dataclass(frozen=True)
class Compression:
    """A teacher, its task, the limits, and the folder of what is made."""

    teacher: Artifact
    task: Task
    config: CompressConfig
    out: Path
    announce: Announce = lambda text: None
    force: bool = False
    """Replace a finished artifact that no earlier run of this has made."""

    def plan(self) -> CompressionReport:
        """Predict every candidate; nothing but probes is made.

        Raises:
            ConfigError: a setting is wrong, or no candidate is expected to hold the limits; the
                message names the nearest one.
            ArtifactError: the model cannot be written where it should.
            RuntimeMissingError: a runtime is not installed, or does not run on this CPU.
            MachineBusyError: other work disturbs the times.
            ConstantError: the teacher predicts one label everywhere.
        """
        self.task.require_training("compress")
        check_writable(self.out / MODEL, self.teacher)
        check_not_finished(self.out / MODEL, self.force or self._has_run)
        check_installed(*self.config.runtimes)
        starts = starts_of(self.teacher, self.task, self.config)
        candidates = all_candidates(starts, self.config, vocab=self._cuts_vocabulary)
        check_any(candidates, starts, self.config)
        check_settings(candidates, self.config, self.task)
        check_teacher_varied(open_classifier(self.teacher), self.teacher.path, self.task)
        probes = self._measured(candidates)
        results = predicted(candidates, probes.models(), self.config)
        results = decided(results, probes.probes, self.config)
        results, further = decided_near_limits(results, self.config, self._measured_alone)
        check_feasible(results, self.config)
        entering = {each.candidate for each in entrants(results, self.config)}
        results = [
            each.model_copy(update={"enters": each.candidate in entering}) for each in results
        ]
        return self._report(results, [probes, *further])

    def run(self) -> CompressionReport:
        """Train, choose and write the model; the report and the table are saved next to it.

        Raises:
            ConfigError: as `plan`; or no trained candidate holds the limits as measured, and the
                report that is saved has what was measured.
        """
        report = self.plan()
        training = Training(
            self.teacher, self.task, self.config, self.out / "candidates", self.announce
        )
        save_result(report, self.out / REPORT)  # an earlier run's is not this one's
        chosen = entrants(report.candidates, self.config)
        budget = Budget(self.config.budget_minutes)
        ranked = halved(chosen, len(self.task.train), training.train, budget)
        finishing = Finishing(training, {each.candidate: each for each in report.candidates})
        done, best = finishing.first_that_holds(ranked)
        report = with_trained(report, done, chosen)
        if best is None:
            report = report.model_copy(update={"verdict": "none holds"})
        save_result(report, self.out / REPORT)
        if best is None:
            raise ConfigError(none_holds(done, self.config))
        return self._deployed(report, best, finishing)

    def _deployed(
        self, report: CompressionReport, best: CandidateResult, finishing: Finishing
    ) -> CompressionReport:
        """Score and write the best model; return the whole report."""
        built = finishing.training.chain(best.candidate, best.rounds[-1])
        runtime, table = best.candidate.runtime, self.out / TABLE
        teacher, *_, score = finishing.compared(built, runtime, table)
        least = self.config.min_score
        scored = best.model_copy(update={"score": score})
        whole = report.model_copy(
            update={
                "candidates": tuple(
                    scored if each.candidate == best.candidate else each
                    for each in report.candidates
                ),
                "chosen": best.candidate.name,
                "verdict": "met" if least is None or score.value >= least else "score not met",
                "teacher_score": teacher,
            }
        )
        copy_artifact(built.last, self.out / MODEL)
        save_result(whole, self.out / REPORT)
        return whole

    @property
    def _has_run(self) -> bool:
        """Whether the folder has the report that each run writes before its model."""
        try:
            CompressionReport.model_validate_json((self.out / REPORT).read_bytes())
        except (OSError, ValidationError):
            return False
        return True

    @property
    def _cuts_vocabulary(self) -> bool:
        return self.task.problem_type == SINGLE_LABEL.name

    def _measured(self, candidates: Sequence[Candidate]) -> Measured:
        """Return the probes, measured now or by the run that this one continues."""
        return self._measured_once("probes.json", candidates, self._probing.measured)

    def _measured_alone(self, candidate: Candidate) -> Measured:
        """Return a probe of a candidate, measured now or by an earlier run, with any limits."""
        file = f"near-limits/{candidate.name}.json"
        measure = self._probing.measured_alone
        return self._measured_once(file, [candidate], lambda candidates: measure(*candidates))

    @property
    def _probing(self) -> Probing:
        return Probing(self.teacher, self.task, self.config, self.out / "probes", self.announce)

    def _measured_once(
        self,
        file: str,
        candidates: Sequence[Candidate],
        measure: Callable[[Sequence[Candidate]], Measured],
    ) -> Measured:
        place = self.out / file
        place.parent.mkdir(parents=True, exist_ok=True)
        names = sorted(candidate.model_dump_json() for candidate in candidates)
        identity = [names, self.teacher.digest, self.task.fingerprint(), self._conditions()]

        def make() -> None:
            save_result(measure(candidates), place)

        build_once([place], identity, make)
        return Measured.model_validate_json(place.read_text(encoding="utf-8"))

    def _conditions(self) -> list[object]:
        settings = [*(getattr(self.config, name) for name in SHAPING), timing_of(self.config)]
        encoders = [folder_digest(Path(name)) for name in self.config.students]
        texts = self.config.unlabelled and digest_of(self.config.unlabelled)
        own_size = self.config.is_explicit("vocab_size")  # else it depends on the start
        processor = processor_name(environment())
        return [processor, library_versions(), settings, own_size, encoders, texts]

    def _report(
        self, results: Sequence[CandidateResult], measurements: Sequence[Measured]
    ) -> CompressionReport:
        """Return the report of a plan; the first measurement is that of all starts."""
        first = measurements[0]
        loads = [each.load for each in measurements if each.load is not None]
        return CompressionReport(
            config=self.config,
            task=self.task.name,
            metric=self.task.metric,
            chosen_on=self.task.chosen_on,
            teacher_mb=first.teacher.model_mb,
            teacher_ms=first.teacher.single_ms,
            variants=tuple(variants_of(self.config)),
            candidates=tuple(results),
            probes=tuple(probe for each in measurements for probe in each.probes),
            obstacles=first.obstacles,
            minutes=0.0,
            environment=environment(),
            load=busiest(loads) if loads else None,
        )
