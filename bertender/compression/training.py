"""Training candidates, whole or on a part of the texts, and the folders that they lie in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertender.compression.candidates import Candidate
from bertender.compression.chain import Built, build, graph_steps, student_steps
from bertender.compression.config import CompressConfig
from bertender.compression.records import CandidateResult, Round
from bertender.core.artifact import Artifact
from bertender.measure.accuracy import evaluate
from bertender.measure.constant import found_constant, is_fault
from bertender.models.opening import open_classifier
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.tasks.bad_rows import SkippedRows, stop
from bertender.tasks.loading import sample
from bertender.tasks.task import Task
from bertender.tasks.texts import read_texts
from bertender.tasks.unlabelled import unlabelled_texts

__all__ = ["Announce", "Training"]

Announce = Callable[[str], None]


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
        """How many texts without labels there are to learn from.

        Raises:
            DataError: their file is wrong.
        """
        config, task = self.config, self.task
        if config.unlabelled is not None:
            bad_row = SkippedRows() if task.skips_bad_rows else stop
            return len(read_texts(config.unlabelled, task.text_columns, bad_row))
        if not config.unlabelled_texts:
            return 0
        return min(config.unlabelled_texts, len(unlabelled_texts(task)))

    def train(self, result: CandidateResult, share: float, number: int) -> Round:
        """Train a candidate on a share of the texts, and score it on those to choose by."""
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
            constant=constant.label if constant and is_fault(constant, score) else None,
        )

    def chain(self, candidate: Candidate, last: Round) -> Built:
        """Return all steps of a candidate that has learned in a round, graphs included.

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
        """Return a model's score on the texts to choose by; a graph runs in the runtime."""
        return self._judged(artifact, runtime)[0]

    def _judged(self, artifact: Artifact, runtime: str = DEFAULT_RUNTIME) -> tuple[float, Any]:
        """Return a model's score on the texts to choose by, and its predictions."""
        opened = open_classifier(artifact, runtime=runtime)
        score, predictions = evaluate(opened, self.task.choices, self.task.metric)
        return score.value, predictions

    def _student(self, candidate: Candidate, texts: int, unlabelled: int) -> Built:
        steps = student_steps(candidate, self.config, unlabelled)
        folder = self._folder(candidate, texts, unlabelled)
        return build(steps, {"teacher": self.teacher}, self._part(texts), folder)

    def _part(self, texts: int) -> Task:
        return replace(self.task, train=sample(self.task.train, texts, self.task.problem))

    def _folder(self, candidate: Candidate, texts: int, unlabelled: int) -> Path:
        """Return where a candidate lies that learned from so many texts, however quantized."""
        return self.folder / candidate.shape_name / f"{texts}-and-{unlabelled}-texts"
