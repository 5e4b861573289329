"""Compression: one command from a teacher and limits to a model within the limits.

teacher + task + CompressConfig
  -> probes, measured -> every candidate predicted (`Compression.plan`)
  -> candidates near a limit that would be trained, measured as probes of their own
  -> some trained by successive halving, scored on the validation texts
  -> the best exported, quantized and measured; the held-out texts score it in the end
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertender.comparison.accuracy import check_labels_fit, check_teacher_varied
from bertender.comparison.compare import compare
from bertender.comparison.latency import TimedModel, measure_models
from bertender.comparison.records import CompareConfig, LatencyConfig
from bertender.compression.candidates import (
    Candidate,
    all_candidates,
    cuts_vocabulary,
    starts_of,
    variants_of,
)
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
    no_candidate_error,
    predicted,
    timing_of,
    with_trained,
)
from bertender.compression.report import MODEL, CandidateResult, CompressionReport
from bertender.compression.training import Announce, Budget, Training, check_settings, halved
from bertender.core.artifact import (
    Artifact,
    check_not_finished,
    check_writable,
    copy_artifact,
    digest_of,
)
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.errors import ConfigError, ModelError, ParityError, RefusedError
from bertender.core.files import save_result
from bertender.core.machine import busiest, environment, processor_name
from bertender.models.classifier import open_classifier
from bertender.models.runtimes import check_installed
from bertender.recipes.stages import Encoder
from bertender.tasks.task import Task

REPORT = "report.json"
TABLE = "table.json"
CUTTING = ("unlabelled_texts", "vocab_floor", "vocab_size")
"""Settings that a probe with a smaller vocabulary depends on, besides its candidate."""


@dataclass(frozen=True)
class Compression:
    """A teacher, its task, the limits, and the output folder."""

    teacher: Artifact
    task: Task
    config: CompressConfig
    out: Path
    announce: Announce = lambda text: None
    force: bool = False
    """Replace a finished artifact that no earlier compression has made."""

    def plan(self) -> CompressionReport:
        """Predict every candidate; only probes are made.

        Raises:
            ConfigError: a setting is wrong, or the teacher's labels look swapped; or no candidate
                is expected to be within the limits, and the message names the nearest one.
            ArtifactError: the model cannot be written at its place.
            RuntimeMissingError: a runtime is not installed, or does not run on this CPU.
            MachineBusyError: other work disturbs the times.
            ConstantError: the teacher predicts one label everywhere.
        """
        config, task = self.config, self.task
        task.require_training("compress")
        teacher = self.teacher.of_task(task.record())
        check_writable(self.out / MODEL, teacher)
        check_not_finished(self.out / MODEL, self.force or self._has_run())
        check_installed(*config.runtimes)
        starts = starts_of(teacher, task, config)
        candidates = all_candidates(starts, config, vocab=cuts_vocabulary(task, config))
        check_any(candidates, starts, config)
        check_settings(candidates, config, task)
        opened = open_classifier(teacher)
        check_teacher_varied(opened, teacher.path, task)
        check_labels_fit(opened, task)

        probing = Probing(teacher, task, config, self.out / "probes", self.announce)

        def measured_alone(candidate: Candidate) -> Measured:
            file = f"near-limits/{candidate.name}.json"
            return self._once(file, [candidate], lambda: probing.measured_alone(candidate))

        first = self._once("probes.json", candidates, lambda: probing.measured(candidates))
        results = predicted(candidates, first.models(), config)
        results = decided(results, first.probes, config)
        results, further = decided_near_limits(results, config, measured_alone)
        check_feasible(results, config)
        entering = {each.candidate for each in entrants(results, config)}
        measurements = [first, *further]
        loads = [each.load for each in measurements if each.load is not None]
        return CompressionReport(
            config=config,
            task=task.name,
            metric=task.metric,
            chosen_on=task.chosen_on,
            teacher_mb=first.teacher.model_mb,
            teacher_ms=first.teacher.single_ms,
            variants=tuple(variants_of(config)),
            candidates=tuple(
                each.model_copy(update={"enters": each.candidate in entering}) for each in results
            ),
            probes=tuple(probe for each in measurements for probe in each.probes),
            obstacles=first.obstacles,
            minutes=0.0,
            environment=environment(),
            load=busiest(loads) if loads else None,
        )

    def run(self) -> CompressionReport:
        """Train, choose and write the model; save the report and the table next to it.

        Raises:
            ConfigError: as for `plan`.
            RefusedError: no trained candidate is within the limits as measured; the saved report
                has the measurements, and no model of an earlier run stays.
        """
        report = self.plan()
        save_result(report, self.out / REPORT)  # removes an earlier run's report
        teacher = self.teacher.of_task(self.task.record())
        training = Training(teacher, self.task, self.config, self.out / "candidates", self.announce)
        chosen = entrants(report.candidates, self.config)
        budget = Budget(self.config.budget_minutes)
        ranked = halved(chosen, len(self.task.train), training.train, budget)
        finishing = Finishing(training, {each.candidate: each for each in report.candidates})
        done, best = finishing.first_that_holds(ranked)
        report = with_trained(report, done, chosen)
        if best is None:
            if (self.out / MODEL).exists():
                self.announce(f"remove {self.out / MODEL}, of an earlier run with other limits")
            shutil.rmtree(self.out / MODEL, ignore_errors=True)
            (self.out / TABLE).unlink(missing_ok=True)
            report = report.model_copy(update={"verdict": "none holds"})
            save_result(report, self.out / REPORT)
            raise RefusedError(no_candidate_error(done, self.config))
        save_result(report, self.out / REPORT)

        built = training.chain(best.candidate, best.rounds[-1])
        timing = {**_timing(self.config), "runtime": (best.candidate.runtime,)}
        steps = [*built.artifacts.values()]
        table = compare(steps, self.task, CompareConfig.model_validate(timing))
        save_result(table, self.out / TABLE)
        teacher_score, *_, score = (row.score for row in table.rows)
        least = self.config.min_score
        scored = best.model_copy(update={"score": score})
        report = report.model_copy(
            update={
                "candidates": tuple(
                    scored if each.candidate == best.candidate else each
                    for each in report.candidates
                ),
                "chosen": best.candidate.name,
                "verdict": "met" if least is None or score.value >= least else "score not met",
                "teacher_score": teacher_score,
            }
        )
        copy_artifact(built.last, self.out / MODEL)
        save_result(report, self.out / REPORT)
        return report

    def _has_run(self) -> bool:
        """Return whether the folder has the report that each run writes before its model."""
        try:
            CompressionReport.model_validate_json((self.out / REPORT).read_bytes())
        except (OSError, ValidationError):
            return False
        return True

    def _once(
        self, file: str, candidates: Sequence[Candidate], measure: Callable[[], Measured]
    ) -> Measured:
        """Return measurements of this run, or of an earlier run with any limits."""
        place, config, here = self.out / file, self.config, environment()
        conditions = [
            timing_of(config),
            [Encoder("students", name).digest() for name in config.students],
            [processor_name(here), here.cores],
            library_versions(),
        ]
        if any(candidate.vocab for candidate in candidates):
            conditions += [
                *(getattr(config, name) for name in CUTTING),
                config.is_explicit("vocab_size"),  # the default depends on the start
                config.unlabelled and digest_of(config.unlabelled),
            ]
        names = sorted(candidate.model_dump_json() for candidate in candidates)
        identity = [names, self.teacher.digest, self.task.fingerprint(), conditions]
        build_once([place], identity, lambda: save_result(measure(), place))
        return Measured.model_validate_json(place.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Finishing:
    """Quantizes and measures trained candidates until one is within its limits."""

    training: Training
    planned: Mapping[Candidate, CandidateResult]
    """All candidates of the plan."""

    def first_that_holds(
        self, ranked: Sequence[CandidateResult]
    ) -> tuple[list[CandidateResult], CandidateResult | None]:
        """Return all results, the tried ones updated, and the first candidate within the limits.

        A candidate that has learned from a part of the texts is measured first and then learns from
        all, unless a budget ended its training: size and latency hardly depend on training.
        """
        done: list[CandidateResult] = []
        for place, result in enumerate(ranked):
            tried = self._tried(result) if result.rounds else [result]
            first = tried[0]
            on_a_part = bool(first.rounds) and first.rounds[-1].share < 1
            if self._holds(first) and on_a_part and self.training.config.budget_minutes is None:
                again = self.training.train(first, 1.0, first.rounds[-1].number + 1)
                whole = first.model_copy(update={"rounds": (*first.rounds, again)})
                tried = [*self._tried(whole), *tried[1:]]
            done += tried
            if self._holds(tried[0]):
                return [*done, *ranked[place + 1 :]], tried[0]
        return done, None

    def _holds(self, result: CandidateResult) -> bool:
        return result.measured is not None and excess(result.measured, self.training.config) <= 1

    def _tried(self, result: CandidateResult) -> list[CandidateResult]:
        """Export, quantize and measure one variant after the other until one is within the limits.

        A candidate that predicts one label everywhere is skipped.

        Returns:
            tried results, the last one first.
        """
        if (label := result.rounds[-1].constant) is not None:
            reason = f"predicts {label!r} everywhere"
            marked = {"left_out": reason, "refused": True, "measured": None, "choice": None}
            return [result.model_copy(update=marked)]
        # its own variant, then the others that are expected to fit
        made = result.candidate
        variants = variants_of(self.training.config)
        others = dict.fromkeys(made.model_copy(update=dict(each)) for each in variants)
        known = [self.planned.get(each) for each in others if each != made]
        fitting = [each for each in known if each is not None and each.fits]
        tried: list[CandidateResult] = []
        for planned in (self.planned.get(made, result), *fitting):
            self.training.announce(f"export and quantize {planned.candidate.name}")
            tried.insert(0, self._measured(result, planned))
            if self._holds(tried[0]):
                break
        return tried

    def _measured(self, result: CandidateResult, planned: CandidateResult) -> CandidateResult:
        """Return a trained candidate as a variant of the plan: measured, or refused."""
        candidate, training = planned.candidate, self.training
        outcome: dict[str, Any] = {"measured": None, "choice": None, "left_out": None}
        try:
            model = training.chain(candidate, result.rounds[-1]).last
        except (ConfigError, ModelError, ParityError) as error:
            outcome |= {"left_out": f"refused: {error}", "refused": True}
        else:
            place, runtime = model.path.resolve(), candidate.runtime
            timed = TimedModel(name=model.name, artifact=place, runtime=runtime)
            timing = LatencyConfig.model_validate(_timing(training.config))
            asked = training.task.problem.asked(training.task.dev.examples)
            times = measure_models([timed], asked, timing)
            cost = cost_of(model, times.rows[0].single.p50_ms)
            beyond = excess(cost, training.config) > 1
            outcome |= {
                "measured": cost,
                "choice": training.choice(model, runtime),
                "left_out": "measured beyond the limits" if beyond else None,
            }
        return planned.model_copy(update={**outcome, "rounds": result.rounds})


def _timing(config: CompressConfig) -> dict[str, Any]:
    names = ("processes", "threads", "seed", "noisy")
    return {name: getattr(config, name) for name in names}
