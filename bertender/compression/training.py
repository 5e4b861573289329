"""Training of candidates: their steps, built once, and successive halving.

Each candidate is made as by the commands: a student, pruned, exported, quantized. Finished steps
are not built again, so that a killed compression continues.

Successive halving is by Jamieson and Talwalkar 2016, arXiv 1502.07943. All candidates start on a
small part of the texts; the better half of each round learns on, from twice as many, until one is
left, which learns from all. The first part is so small that the rounds together take as long as
that last training, so that half of the time goes to the model that will serve. With few texts, a
part has FEWEST_TEXTS, rounds of nearly equal parts are merged, and choosing takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertender.comparison.accuracy import evaluate, found_constant, is_fault
from bertender.compression.candidates import Candidate
from bertender.compression.config import CompressConfig
from bertender.compression.report import CandidateResult, Round
from bertender.core.artifact import Artifact
from bertender.core.build_once import seconds_of_build
from bertender.core.errors import ConfigError
from bertender.models.classifier import open_classifier
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.recipes.recipe import PlannedStep, Step, run_step
from bertender.recipes.stage import GRAPH_TO_QUANTIZE, NamedFile
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import sample, unlabelled_texts
from bertender.tasks.rows import SkippedRows, stop
from bertender.tasks.task import Task
from bertender.tasks.text_files import read_unlabelled
from distill.distillation.config import DistillConfig

TEACHER = "teacher"
LEAST_VOCABULARY_RATIO = 2
"""Default size of a vocabulary is at least this many times the entries that always remain."""
PROBE_TRAINING = {"epochs": 1, "learning_rate": 1e-5}
"""Settings of a probe: its size and latency do not depend on training."""
ALLOW_CONSTANT = {"allow_constant": True}
"""A candidate that learned nothing must not end the search: its round is marked instead."""
RECOVERY_SETTINGS = frozenset({"epochs", "batch_size", "no_dropout"})
"""Settings of pruning that are refused without recovery training."""

FEWEST_TEXTS = 500
"""Fewer texts say little about a candidate."""
LEAST_GROWTH = 1.5
"""Growth of the texts from round to round: a few more texts would give the same result again."""
SINGLE_CANDIDATE_SHARE = 0.1
"""Share of the texts for a single candidate, to estimate the time for all texts."""

Announce = Callable[[str], None]
Train = Callable[[CandidateResult, float, int], Round]
"""(candidate, share of the texts, number of the round) -> its training"""


def student_steps(
    candidate: Candidate, config: CompressConfig, unlabelled: int, *, cut_last: bool = False
) -> list[Step]:
    """Return the steps that train a candidate: distilling and pruning, or only pruning.

    A smaller vocabulary is learned from the first step if the method allows it: cutting that of a
    trained student costs some of its score.

    Args:
        candidate: candidate to train.
        config: how long, and on which texts.
        unlabelled: unlabelled texts to learn from, at most.
        cut_last: cut the vocabulary by pruning, whatever the method allows.
    """
    steps = []
    shared = {**_texts(config, unlabelled), "seed": config.seed, **ALLOW_CONSTANT}
    pace = {"batch_size": config.batch_size, "no_dropout": config.no_dropout}
    start = candidate.start
    shares = {"heads": candidate.heads, "ffn": candidate.ffn}
    cuts: dict[str, Any] = {name: share for name, share in shares.items() if share}
    vocabulary = _vocabulary(candidate, config) if candidate.vocab else {}
    if candidate.is_distilled:
        # whether the vocabulary is cut is the candidate's choice
        settings: dict[str, Any] = {**shared, "vocab_size": "all"}
        if start.encoder is not None:
            settings |= {"method": "pd", "student": start.encoder}
        elif start.method is not None:
            settings |= {"method": start.method}
        if start.layers:  # without layers, epochs, rate and batches are the method's own
            passes = {"epochs": config.epochs, "learning_rate": config.learning_rate}
            settings |= {"layers": candidate.layers, **passes, **pace}
        if vocabulary and not cut_last and _compares_logits_alone(settings):
            settings |= vocabulary
            vocabulary = {}
        steps.append(_step("student", "distill", (TEACHER,), settings))
    if vocabulary:
        cuts |= {"vocab": "task", **vocabulary}
    if cuts:
        settings = {**shared, "epochs": config.recovery_epochs, **pace, **cuts}
        # a student's recovery learns from the teacher, which is better than the student
        sources = (steps[-1].name, TEACHER) if steps else (TEACHER,)
        steps.append(_step("pruned", "prune", sources, settings))
    return steps


def _vocabulary(candidate: Candidate, config: CompressConfig) -> dict[str, Any]:
    """Return the settings of a smaller vocabulary."""
    size = config.vocab_size
    if not config.is_explicit("vocab_size"):
        # besides single characters where these are many, as in Chinese
        size = max(size, LEAST_VOCABULARY_RATIO * candidate.start.least_entries)
    return {"vocab_floor": config.vocab_floor, "vocab_size": size}


def _compares_logits_alone(settings: Mapping[str, Any]) -> bool:
    """Return whether a student of these settings may read other tokens than its teacher.

    States of whole texts could be compared too, but their cache has a limit that `compress` has no
    setting for.
    """
    method = DistillConfig.parse(settings).changed_method()
    return method.needs <= {"logits"} and not method.wants_teacher_tokens


def probe_steps(candidate: Candidate, config: CompressConfig) -> tuple[list[Step], list[Step]]:
    """Return the steps of a probe: training on a few texts, cutting on all texts.

    A cut trains nothing, and so has no teacher. If it counts tokens, it reads all unlabelled texts,
    as the final step of the winner does.
    """
    students, cuts = [], []
    for step in student_steps(candidate, config, 0, cut_last=True):
        if step.stage == "distill":
            settings = {**step.settings, **PROBE_TRAINING}
            students.append(step.model_copy(update={"settings": settings}))
            continue
        settings = {
            name: each for name, each in step.settings.items() if name not in RECOVERY_SETTINGS
        }
        if "vocab" in settings and config.unlabelled is None:
            settings |= _texts(config, config.unlabelled_texts)
        elif "vocab" in settings:
            settings |= {"unlabelled": str(config.unlabelled)}
        settings |= {"recover": False}
        cuts.append(step.model_copy(update={"settings": settings, "sources": step.sources[:1]}))
    return students, cuts


def graph_steps(candidate: Candidate, source: str, **settings: Any) -> list[Step]:
    """Return the steps that export and quantize a step's artifact; both get `settings`."""
    return [
        _step("onnx", "export", (source,), settings),
        _step("int8", "quantize", ("onnx",), {**candidate.settings, **settings}),
    ]


def _texts(config: CompressConfig, unlabelled: int) -> dict[str, Any]:
    """Return the settings for this many unlabelled texts."""
    if not unlabelled:
        return {}
    if config.unlabelled is None:
        return {"unlabelled_texts": unlabelled}
    return {"unlabelled": str(config.unlabelled), "max_unlabelled": unlabelled}


def _step(name: str, stage: str, sources: tuple[str, ...], settings: Mapping[str, Any]) -> Step:
    return Step.model_validate(
        {"name": name, "stage": stage, "from": sources, "with": dict(settings)}
    )


def check_settings(candidates: Sequence[Candidate], config: CompressConfig, task: Task) -> None:
    """Raise an error before any work if a step of a candidate cannot run on the task, or a file is
    missing.

    Raises:
        BertenderError: the first problem.
    """
    unlabelled = int(config.unlabelled is not None or config.unlabelled_texts > 0)
    steps = {
        step.model_dump_json(): step  # many candidates share a step
        for each in candidates
        for step in (*student_steps(each, config, unlabelled), *graph_steps(each, TEACHER))
    }
    files: list[NamedFile] = []
    for step in steps.values():
        stage = STAGES[step.stage]
        settings = stage.config.parse(step.settings)
        if step.stage == "quantize" and stage.wants(settings, 0) is not GRAPH_TO_QUANTIZE:
            raise ConfigError(
                f"schemes={step.settings['scheme']}: it trains, and a candidate is quantized as it "
                "is. Give schemes that start from a graph, as dynamic or static."
            )
        stage.accepts(task)
        stage.check(settings, task)
        files += stage.files(settings)
    for file in dict.fromkeys(files):  # the check of a packaged encoder reads all its bytes
        file.check()


@dataclass(frozen=True)
class Built:
    """Artifacts of a candidate's steps."""

    artifacts: Mapping[str, Artifact]
    """Artifacts by step name, the teacher's included."""
    seconds: float
    """Seconds that the steps took, in this run and in earlier ones."""

    @property
    def last(self) -> Artifact:
        """The artifact of the last step."""
        return [*self.artifacts.values()][-1]


def build(
    steps: Sequence[Step], artifacts: Mapping[str, Artifact], task: Task, folder: Path
) -> Built:
    """Build steps in a folder, reusing finished ones.

    Args:
        steps: steps from earlier ones or from `artifacts`.
        artifacts: available artifacts, by name.
        task: task whose texts the steps learn from.
        folder: folder for one artifact per step.
    """
    done, seconds = dict(artifacts), 0.0
    for step in steps:
        config = STAGES[step.stage].config.parse(step.settings)
        outcome = run_step(PlannedStep(step, config, folder), task, done)
        done[step.name] = Artifact.load(outcome.output, verify=False)
        seconds += seconds_of_build(outcome.output)
    return Built(done, seconds)


@dataclass(frozen=True)
class Training:
    """Texts, teacher and settings that all candidates share."""

    teacher: Artifact
    task: Task
    config: CompressConfig
    folder: Path
    announce: Announce

    @cached_property
    def unlabelled(self) -> int:
        """Number of unlabelled texts to learn from.

        Raises:
            DataError: the file of unlabelled texts is wrong.
        """
        config, task = self.config, self.task
        if config.unlabelled is not None:
            bad_row = SkippedRows() if task.skips_bad_rows else stop
            return len(read_unlabelled(config.unlabelled, task, bad_row))
        if not config.unlabelled_texts:
            return 0
        return min(config.unlabelled_texts, len(unlabelled_texts(task)))

    def train(self, result: CandidateResult, share: float, number: int) -> Round:
        """Train a candidate on a share of the texts, and score it on the validation texts."""
        count = max(round(share * len(self.task.train)), 1)
        unlabelled = round(share * self.unlabelled)
        self.announce(
            f"round {number + 1}: {result.candidate.name} on {count} labelled and "
            f"{unlabelled} unlabelled texts"
        )
        built = self._student(result.candidate, count, unlabelled)
        score, predictions = self._judged(built.last)
        constant = found_constant(self.task, self.task.choices, predictions)
        return Round(
            number=number,
            share=share,
            texts=count,
            unlabelled=unlabelled,
            score=score,
            minutes=built.seconds / 60,
            constant=constant.label if constant and is_fault(constant) else None,
        )

    def chain(self, candidate: Candidate, last: Round) -> Built:
        """Return all steps of a candidate trained in a round, graphs included.

        Raises:
            GateError, ParityError: a gate refuses a graph.
        """
        trained = self._student(candidate, last.texts, last.unlabelled)
        settings = {"golden_texts": self.config.golden_texts}
        export, quantize = graph_steps(candidate, [*trained.artifacts][-1], **settings)
        part, folder = self._part(last.texts), self._folder(candidate, last.texts, last.unlabelled)
        exported = build([export], trained.artifacts, part, folder)
        return build([quantize], exported.artifacts, part, folder / candidate.variant_name)

    def choice(self, artifact: Artifact, runtime: str = DEFAULT_RUNTIME) -> float:
        """Return a model's score on the validation texts; a graph runs in the given runtime."""
        return self._judged(artifact, runtime)[0]

    def _judged(self, artifact: Artifact, runtime: str = DEFAULT_RUNTIME) -> tuple[float, Any]:
        """Return a model's score on the validation texts, and its predictions."""
        opened = open_classifier(artifact, runtime=runtime)
        score, predictions = evaluate(opened, self.task.choices, self.task.metric)
        return score.value, predictions

    def _student(self, candidate: Candidate, texts: int, unlabelled: int) -> Built:
        steps = student_steps(candidate, self.config, unlabelled)
        folder = self._folder(candidate, texts, unlabelled)
        return build(steps, {TEACHER: self.teacher}, self._part(texts), folder)

    def _part(self, texts: int) -> Task:
        return replace(self.task, train=sample(self.task.train, texts, self.task.problem))

    def _folder(self, candidate: Candidate, texts: int, unlabelled: int) -> Path:
        """Return the folder of a candidate that learned from so many texts, before quantization."""
        return self.folder / candidate.shape_name / f"{texts}-and-{unlabelled}-texts"


@dataclass
class Budget:
    """Minutes of training to spend: half to choose, the rest on the chosen candidate."""

    minutes: float | None
    spent: float = 0.0
    for_all_texts: list[float] = field(default_factory=list)
    """Minutes that each training so far would have taken on all texts."""

    def allows_choosing(self, result: CandidateResult, share: float) -> bool:
        """Return whether training on a share of the texts fits in the half for choosing."""
        expected = self._expected(result)
        if self.minutes is None or expected is None:
            return True
        return self.spent + share * expected <= self.minutes / 2

    def affordable_share(self, result: CandidateResult) -> float:
        """Return the share of the texts that the remaining budget allows, at most 1."""
        expected = self._expected(result)
        if self.minutes is None or expected is None:
            return 1.0
        return min(max(self.minutes - self.spent, 0.0) / max(expected, 1e-9), 1.0)

    def spend(self, done: Round) -> None:
        """Record a training; one without steps takes no time and predicts nothing."""
        self.spent += done.minutes
        if done.minutes:
            self.for_all_texts.append(done.minutes / done.share)

    def _expected(self, result: CandidateResult) -> float | None:
        """Return the minutes on all texts: by the candidate's own training, else by the others'."""
        if result.rounds:
            return result.rounds[-1].minutes / result.rounds[-1].share
        known = self.for_all_texts
        return sum(known) / len(known) if known else None


def parts_of_texts(candidates: int, texts: int, *, budgeted: bool = False) -> list[float]:
    """Return the share of the texts for each round, 1 in the last.

    Args:
        candidates: number of candidates at the start.
        texts: number of labelled texts.
        budgeted: whether a single candidate has a small round too, to estimate the time for all
            texts.
    """
    rounds = range(max(math.ceil(math.log2(candidates)), int(budgeted)))
    trainings = sum(2**number * math.ceil(candidates / 2**number) for number in rounds)
    first = 1 / trainings if candidates > 1 else SINGLE_CANDIDATE_SHARE
    fewest = min(FEWEST_TEXTS / max(texts, 1), 1.0)
    shares: list[float] = []
    for share in (max(2**number * first, fewest) for number in rounds):
        if not shares or share >= LEAST_GROWTH * shares[-1]:
            shares.append(share)
    return [*dict.fromkeys((*shares, 1.0))]


def halved(
    entrants: Sequence[CandidateResult], texts: int, train: Train, budget: Budget
) -> list[CandidateResult]:
    """Train candidates in rounds; return all with their rounds, the best of the last round first.

    When half of the budget is spent, the choice ends; the best so far then learns from as many
    texts as the rest of the budget allows.

    Args:
        entrants: candidates, at least one.
        texts: number of labelled training texts.
        train: trains a candidate, and returns its score on the validation texts.
        budget: training time to spend.
    """

    def trained(result: CandidateResult, share: float, number: int) -> CandidateResult:
        done = train(result, share, number)
        budget.spend(done)
        return result.model_copy(update={"rounds": (*result.rounds, done)})

    def beaten(result: CandidateResult, number: int) -> CandidateResult:
        reason = f"better ones of round {number + 1} went on without it"
        return result.model_copy(update={"left_out": result.left_out or reason})

    remaining, others = [*entrants], list[CandidateResult]()
    shares = parts_of_texts(len(entrants), texts, budgeted=budget.minutes is not None)
    choosing = shares[:-1] or (shares if len(entrants) > 1 else [])
    for number, share in enumerate(choosing):
        for place, each in enumerate(remaining):
            if each.left_out:
                continue
            if budget.allows_choosing(each, share):
                remaining[place] = trained(each, share, number)
            else:
                reason = "half of the budget was spent before it"
                remaining[place] = each.model_copy(update={"left_out": reason})
        ranked = sorted(remaining, key=_rank, reverse=True)
        remaining = ranked[: math.ceil(len(ranked) / 2)]
        others[:0] = [beaten(each, number) for each in ranked[len(remaining) :]]
    leader, *rivals = remaining
    others[:0] = [beaten(each, len(choosing) - 1) for each in rivals]
    # the best learns from as many texts as the budget allows, if that is more than it has seen
    leader = leader.model_copy(update={"left_out": None})
    share = budget.affordable_share(leader)
    if not leader.rounds or share > leader.rounds[-1].share:
        leader = trained(leader, share, len(choosing))
    return [leader, *others]


def _rank(result: CandidateResult) -> tuple[int, bool, float]:
    last = result.rounds[-1] if result.rounds else None
    return (last.number, last.constant is None, last.score) if last else (-1, False, 0.0)
