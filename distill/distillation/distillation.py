"""A distillation: a student and all that it learns from, loaded and checked, nothing trained yet.

It is made on a task (`on_task`), on a corpus (`on_corpus`), by the recovery of a pruned model
(`distill.pruning.rounds`) and by the benchmark of training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.timing import Stopwatch, Timing
from bertender.core.work import in_order
from bertender.training.config import TrainingConfig, computes_in_bf16
from bertender.training.examples import TokenDataset
from bertender.training.loop import NO_RATES, planned, train
from bertender.training.objective import Objective, TrainingReport
from distill.distillation.phases import (
    DistillationObjective,
    Masked,
    labelled,
    phase_settings,
    unmasked,
)
from distill.losses.projections import Tensors, take_up
from distill.losses.training_module import TrainingModule
from distill.methods.phase import Phase

__all__ = ["Distillation", "Evaluate", "Trained"]


class Evaluate(Protocol):
    """Measures what a phase trains, which holds the model as `student`."""

    def __call__(self, training_module: Any, objective: Objective) -> dict[str, float]: ...


@dataclass(frozen=True)
class Trained:
    """A trained student."""

    student: PreTrainedModel
    reports: Mapping[str, TrainingReport]
    """By the names of the phases."""
    timing: Timing
    projections: Tensors = field(default_factory=dict)
    """What brought its states to the teacher's width."""

    @property
    def last(self) -> TrainingReport:
        """The report of the last phase."""
        return [*self.reports.values()][-1]


@dataclass(frozen=True)
class Distillation:
    """A student and all that its training needs: teacher, phases, texts, evaluation."""

    student: PreTrainedModel
    """It is trained in place."""
    teacher: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    """The student's."""
    phases: tuple[Phase, ...]
    examples: Callable[[], TokenDataset]
    """Makes the training texts, with the outputs of the teacher that are cached."""
    evaluate: Evaluate
    """Measures the student after each epoch of the last phase."""
    masking: Masked = unmasked
    """Inputs of the models in phases that mask words."""
    clock: Stopwatch = field(default_factory=Stopwatch)
    """It runs while a teacher does."""
    projections: Tensors = field(default_factory=dict)
    """Those that the student learned with before; the others are drawn at random."""

    def run(self, config: TrainingConfig, work: Path, description: str) -> Trained:
        """Train the student by all phases; an interrupted run continues in the phase it was in.

        Each phase has its own optimizer, schedule and folder of checkpoints. The end of a phase is
        saved as a checkpoint too, from which a run that is resumed later takes the student.

        Args:
            config: how long and fast.
            work: directory of the checkpoints.
            description: text of the progress bar.
        """
        reports: dict[str, TrainingReport] = {}
        wall = Stopwatch()
        with wall.running():
            student, examples = self.student, self.examples()
            projections = dict(self.projections)
            for phase, folder, is_last in in_order(self.phases, work):
                settings = phase_settings(phase, config)
                texts = examples if phase.needs or phase.masked else labelled(examples)
                steps = len(planned(texts, settings))
                training_module: Any = phase.training_module.of(
                    student, self.teacher, phase, seed=config.seed, steps=steps
                )
                if isinstance(training_module, TrainingModule):
                    projections |= take_up(training_module.projections, projections)
                objective = self.objective(phase, computes_in_bf16(config))
                reports[phase.name] = train(
                    training_module,
                    texts,
                    objective,
                    settings,
                    folder,
                    description=description if is_last else f"{description}: {phase.name}",
                    at_epoch_end=partial(self.evaluate, objective=objective) if is_last else None,
                    rates=getattr(training_module, "rates", NO_RATES),
                )
                student = training_module.finished()
        timing = self._timing(wall, [*reports.values()])
        return Trained(student, reports, timing, projections)

    def objective(self, phase: Phase, bf16: bool) -> DistillationObjective:
        """Return the loss of a phase. The teacher runs for what the batches do not hold."""
        depths = (m.config.num_hidden_layers for m in (self.student, self.teacher))
        prepare = self.masking if phase.masked else unmasked
        reads = phase.reads(*depths)
        return DistillationObjective(self.teacher, reads, bf16, prepare=prepare, clock=self.clock)

    def _timing(self, wall: Stopwatch, reports: list[TrainingReport]) -> Timing:
        return Timing(
            wall_s=wall.seconds,
            training_s=sum(report.seconds for report in reports),
            samples=sum(report.samples for report in reports),
            teacher_s=self.clock.seconds,
        )
