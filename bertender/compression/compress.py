"""Compression: one command from a teacher and constraints to a model that holds them.

teacher + task + CompressConfig
  -> probes, measured -> every candidate predicted (`planned`)
  -> some trained by successive halving, scored on texts that nothing learns from
  -> the best exported, quantized and measured; the held-out texts are read once, at the end
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertender.compression.candidates import Candidate, Start, all_candidates
from bertender.compression.chain import Built, build, check_settings, graph_steps, student_steps
from bertender.compression.config import CompressConfig
from bertender.compression.halving import Budget, halved
from bertender.compression.plan import check_feasible, entrants, excess, predicted
from bertender.compression.probes import Measured, cost_of, measured
from bertender.compression.records import CandidateResult, CompressionReport, Cost, Round
from bertender.core.artifact import Artifact, copy_artifact
from bertender.core.build_once import build_once
from bertender.core.environment import environment
from bertender.core.errors import (
    ConfigError,
    GateError,
    HubUnreachableError,
    ModelError,
    ParityError,
)
from bertender.core.saving import save_result
from bertender.measure.accuracy import evaluate
from bertender.measure.compare import CompareConfig, compare
from bertender.measure.fresh import TimedModel, measure_models
from bertender.measure.latency import LatencyConfig
from bertender.metrics.scores import Score
from bertender.models.opening import open_classifier
from bertender.pipeline.stage import provided_by
from bertender.problems import SINGLE_LABEL
from bertender.tasks.loading import sample
from bertender.tasks.task import Task
from bertender.tasks.texts import read_texts

__all__ = ["MODEL", "REPORT", "TABLE", "Compression"]

logger = logging.getLogger(__name__)

MODEL = "model"
REPORT = "report.json"
TABLE = "table.json"
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Compression:
    """A teacher, its task, and what may be made of it in a folder."""

    teacher: Artifact
    task: Task
    config: CompressConfig
    out: Path
    announce: Announce = lambda text: None

    def plan(self) -> CompressionReport:
        """Predict every candidate; nothing but probes is made.

        Raises:
            ConfigError: a setting is wrong, or no candidate is predicted to hold the constraints;
                the message names the nearest one.
            MachineBusyError: other work disturbs the times.
        """
        candidates = all_candidates(self._starts(), self.config, vocab=self._cuts_vocabulary)
        check_settings(candidates, self.config, self.task)
        probes = self._measured(candidates)
        results = predicted(candidates, probes.models(), self.config)
        check_feasible(results, self.config)
        return self._report(results, probes)

    def run(self) -> CompressionReport:
        """Train, choose and write the model; the report and the table are saved next to it.

        Raises:
            ConfigError: as `plan`; or no trained candidate holds the constraints as measured.
        """
        report = self.plan()
        chosen = entrants(report.candidates, self.config)
        finished, best = self._finished(self._halved(chosen))
        built = self._chain(best.candidate, best.rounds[-1])
        copy_artifact(built.last, self.out / MODEL)
        first, *_, last = self._compared(built)
        done = [_scored(each, best, last) for each in finished]
        whole = report.model_copy(
            update={
                "candidates": (*done, *_others(report.candidates, done)),
                "chosen": best.candidate.name,
                "verdict": "met" if self._is_met(last) else "score not met",
                "teacher_score": first,
                "minutes": sum(each.minutes for one in done for each in one.rounds),
            }
        )
        save_result(whole, self.out / REPORT)
        return whole

    def _halved(self, chosen: Sequence[CandidateResult]) -> list[CandidateResult]:
        budget = Budget(self.config.budget_minutes)
        return halved(chosen, len(self.task.train), self._train, budget)

    def _is_met(self, score: Score) -> bool:
        return self.config.min_score is None or score.value >= self.config.min_score

    @property
    def _cuts_vocabulary(self) -> bool:
        return self.task.problem_type == SINGLE_LABEL.name

    def _starts(self) -> list[Start]:
        """Return what students may start from: the teacher, and encoders."""
        depth_of = provided_by("distill.depth")
        starts = [Start(name="teacher", layers=depth_of(str(self.teacher.path)))]
        for name in self.config.students:
            try:
                start = Start(name=Path(name).name, layers=depth_of(name), encoder=name)
            except (ModelError, HubUnreachableError) as error:
                if self.config.is_explicit("students"):
                    raise
                logger.warning("no student starts from %s: %s", name, error)
            else:
                starts.append(start)
        return starts

    def _measured(self, candidates: Sequence[Candidate]) -> Measured:
        """Return the probes, measured now or by the run that this one continues."""
        place = self.out / "probes.json"
        names = sorted(candidate.model_dump_json() for candidate in candidates)
        identity = [names, self.teacher.digest, self.task.fingerprint(), self._conditions()]

        def make() -> None:
            folder = self.out / "probes"
            made = measured(self.teacher, candidates, self.task, self.config, folder, self.announce)
            save_result(made, place)

        build_once([place], identity, make)
        return Measured.model_validate_json(place.read_text(encoding="utf-8"))

    def _conditions(self) -> list[object]:
        return [environment().cpu_model, self.config.threads, self.config.vocab_floor]

    def _train(self, result: CandidateResult, share: float, number: int) -> Round:
        """Train a candidate on a share of the texts and score it on those to choose by."""
        texts, unlabelled = self._part(share)
        candidate = result.candidate
        self.announce(
            f"round {number + 1}: {candidate.name} on {len(texts.train)} labelled and "
            f"{unlabelled} unlabelled texts"
        )
        folder = self._folder(candidate, len(texts.train), unlabelled)
        built = build(
            student_steps(candidate, self.config, unlabelled),
            {"teacher": self.teacher},
            texts,
            folder,
        )
        score, _ = evaluate(open_classifier(built.last), self.task.choices, self.task.metric)
        return Round(
            number=number,
            share=share,
            texts=len(texts.train),
            unlabelled=unlabelled,
            score=score.value,
            minutes=_minutes(built, folder),
        )

    def _part(self, share: float) -> tuple[Task, int]:
        """Return the task with a share of its training texts, and how many unlabelled ones."""
        count = max(round(share * len(self.task.train)), 1)
        part = sample(self.task.train, count, self.task.problem)
        return replace(self.task, train=part), round(share * self._unlabelled())

    def _unlabelled(self) -> int:
        if self.config.unlabelled is None:
            return self.config.unlabelled_texts
        return len([*read_texts(self.config.unlabelled, self.task.text_columns)])

    def _folder(self, candidate: Candidate, texts: int, unlabelled: int) -> Path:
        return self.out / "candidates" / candidate.name / f"{texts}-and-{unlabelled}-texts"

    def _chain(self, candidate: Candidate, last: Round) -> Built:
        """Return all steps of a candidate that has learned in a round, graphs included."""
        folder = self._folder(candidate, last.texts, last.unlabelled)
        part = replace(self.task, train=sample(self.task.train, last.texts, self.task.problem))
        steps = student_steps(candidate, self.config, last.unlabelled)
        trained = build(steps, {"teacher": self.teacher}, part, folder)
        source = [*trained.artifacts][-1]
        return build(graph_steps(candidate, source), trained.artifacts, part, folder)

    def _finished(
        self, ranked: Sequence[CandidateResult]
    ) -> tuple[list[CandidateResult], CandidateResult]:
        """Return the candidates, and the first of the ranking that holds what it was chosen for.

        Raises:
            ConfigError: none does; the nearest is named.
        """
        finished = list(ranked)
        for place, result in enumerate(ranked):
            if not result.rounds:
                continue
            finished[place] = measured_one = self._quantized(self._whole(result))
            cost = measured_one.measured
            if cost is not None and excess(cost, self.config) <= 1:
                return finished, measured_one
        raise ConfigError(_none_holds(finished, self.config))

    def _whole(self, result: CandidateResult) -> CandidateResult:
        """Return a candidate that has learned from all texts, if the one before it failed."""
        last = result.rounds[-1]
        if last.share == 1 or self.config.budget_minutes is not None:
            return result
        again = self._train(result, 1.0, last.number + 1)
        return result.model_copy(update={"rounds": (*result.rounds, again)})

    def _quantized(self, result: CandidateResult) -> CandidateResult:
        """Export, quantize and measure a candidate; a gate's refusal is recorded."""
        self.announce(f"export and quantize {result.candidate.name}")
        try:
            built = self._chain(result.candidate, result.rounds[-1])
        except (GateError, ParityError) as error:
            return result.model_copy(update={"left_out": f"refused: {error}"})
        score, _ = evaluate(open_classifier(built.last), self.task.choices, self.task.metric)
        cost = cost_of(built.last, self._single_ms(built.last))
        beyond = excess(cost, self.config) > 1
        reason = "measured beyond the constraints" if beyond else None
        return result.model_copy(
            update={"measured": cost, "choice": score.value, "left_out": reason}
        )

    def _single_ms(self, artifact: Artifact) -> float:
        timing = LatencyConfig.model_validate(self._timing())
        model = TimedModel(name=artifact.name, artifact=artifact.path.resolve())
        return measure_models([model], self.task.dev.examples, timing).rows[0].single.p50_ms

    def _timing(self) -> dict[str, Any]:
        names = ("processes", "threads", "seed", "noisy")
        return {name: getattr(self.config, name) for name in names}

    def _compared(self, built: Built) -> list[Score]:
        """Save the table of the chosen chain, and return the scores: the teacher's first."""
        config = CompareConfig.model_validate(self._timing())
        table = compare([*built.artifacts.values()], self.task, config)
        save_result(table, self.out / TABLE)
        return [row.score for row in table.rows]

    def _report(self, results: Sequence[CandidateResult], probes: Measured) -> CompressionReport:
        return CompressionReport(
            config=self.config,
            task=self.task.name,
            metric=self.task.metric,
            chosen_on=self.task.chosen_on,
            teacher_mb=probes.teacher.model_mb,
            teacher_ms=probes.teacher.single_ms,
            candidates=tuple(results),
            probes=probes.probes,
            minutes=0.0,
            environment=environment(),
            load=probes.load,
        )


def _minutes(built: Built, folder: Path) -> float:
    """Return how long the training took, also where an earlier run has done it."""
    place = folder / "minutes.json"
    if not built.reused or not place.exists():
        place.write_text(json.dumps(built.seconds / 60), encoding="utf-8")
    return float(json.loads(place.read_text(encoding="utf-8")))


def _scored(result: CandidateResult, best: CandidateResult, score: Score) -> CandidateResult:
    if result.candidate != best.candidate:
        return result
    return result.model_copy(update={"score": score})


def _others(
    planned: Sequence[CandidateResult], trained: Sequence[CandidateResult]
) -> list[CandidateResult]:
    """Return the candidates that were only predicted."""
    known = {each.candidate for each in trained}
    rest = [each for each in planned if each.candidate not in known]
    return [_passed_over(each) for each in rest]


def _passed_over(result: CandidateResult) -> CandidateResult:
    if not result.fits:
        return result
    reason = "others that fit have more weights left"
    return result.model_copy(update={"left_out": reason})


def _none_holds(finished: Sequence[CandidateResult], config: CompressConfig) -> str:
    tried = [each for each in finished if each.measured is not None]
    if not tried:
        reasons = "; ".join(f"{each.candidate.name}: {each.left_out}" for each in finished)
        return f"no candidate could be quantized. {reasons}. Give other schemes."
    nearest = min(tried, key=lambda each: excess(_cost(each), config))
    cost = _cost(nearest)
    return (
        f"no trained candidate holds the constraints as measured. The nearest is "
        f"{nearest.candidate.name}, with {cost.model_mb:.2f} MB and {cost.single_ms:.2f} ms. "
        "Give max_mb and max_ms beyond that, or more candidates."
    )


def _cost(result: CandidateResult) -> Cost:
    return result.cost
