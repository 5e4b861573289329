"""A distillation: a student and all that it learns from, and its training by phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Stopwatch, Timing
from bertender.core.build_once import in_order
from bertender.core.errors import ModelError
from bertender.problems.problem import NO_LABEL
from bertender.training.config import TrainingConfig, computes_in_bf16
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads import HEADS, Head
from bertender.training.loop import NO_RATES, LossParts, Objective, TrainingReport, planned, train
from distill.distillation.config import PhasedConfig
from distill.losses.signals import Signals, Wanted, read_signals
from distill.losses.training_modules import TRAINING_MODULES, TrainingModule
from distill.methods.method import Method, Phase
from distill.teachers.outputs import cached_in
from distill.trained import Tensors, take_up

# --- from distill.distillation.phases
# The phases of a distillation: the settings, the loss and the texts of each.

Masked = Callable[[TensorBatch, int], TensorBatch]
"""(batch, step) -> the batch with some words masked, and its targets"""


def unmasked(batch: TensorBatch, step: int) -> TensorBatch:
    """Return the batch as it is."""
    return batch


class DistillationObjective:
    """The loss of a training module. The teacher runs only for what the batches do not hold.

    Args:
        teacher: it is frozen, in eval mode, and moved to where the batches are.
        reads: what the training module's loss reads of the teacher, and of which layers.
        bf16: run the teacher in bf16, as the student is.
        prepare: (batch, step) -> the batch that both models read.
        clock: it runs while the teacher does.
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        reads: Wanted,
        bf16: bool = False,
        *,
        prepare: Masked = unmasked,
        clock: Stopwatch | None = None,
    ) -> None:
        self.reads = reads
        self.bf16 = bf16
        self.prepare = prepare
        self.clock = clock or Stopwatch()
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        batch = self.prepare(batch, step)
        parts: LossParts = model(batch, self._teacher_signals(batch), step)
        return parts

    def _teacher_signals(self, batch: TensorBatch) -> Signals:
        cached = cached_in(batch, self.reads)
        online = {signal: self.reads[signal] for signal in self.reads if signal not in cached}
        if not online:
            nothing = Signals(torch.empty(0), self.teacher.config.num_hidden_layers)
            return replace(nothing, **cached)
        with self.clock.running():
            return replace(self._online_signals(batch, online), **cached)

    def _online_signals(self, batch: TensorBatch, wanted: Wanted) -> Signals:
        device = batch["input_ids"].device
        self.teacher.to(device)
        # the Trainer's own autocast does not reach the teacher on a GPU
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            return read_signals(self.teacher, batch, wanted)


def phase_settings(phase: Phase, config: TrainingConfig) -> TrainingConfig:
    """Return the config of one phase.

    The last takes the config as it is; those before it take its `earlier_` fields, else what the
    phase itself sets, else the config's.
    """
    if phase.epochs is None:
        return config
    assert isinstance(config, PhasedConfig)  # whose method has a phase before the last
    wanted = {
        "epochs": config.earlier_epochs,
        "learning_rate": config.earlier_learning_rate,
    }
    explicit = {name: value for name, value in wanted.items() if value is not None}
    return config.model_copy(update={"epochs": phase.epochs, **phase.settings, **explicit})


def phases_with_head(phases: Iterable[Phase], problem_type: str) -> tuple[Phase, ...]:
    """Return phases whose terms on labels and logits are those of a problem type."""
    head = HEADS[problem_type]
    return tuple(
        replace(phase, terms=tuple(_with_head(term, head) for term in phase.terms))
        for phase in phases
    )


def _with_head(term: Any, head: Head) -> Any:
    return replace(term, head=head) if hasattr(term, "head") else term


def check_compatible(method: Method, student: PreTrainedModel, teacher: PreTrainedModel) -> None:
    """Raise ModelError where a term cannot compare this student with this teacher."""
    incompatibilities = [
        term.incompatibility(student.config, teacher.config)
        for phase in method.at(student.config.num_hidden_layers).phases
        for term in phase.terms
        if term.weight
    ]
    if reasons := sorted(set(filter(None, incompatibilities))):
        raise ModelError(f"method {method.name!r}: {'; '.join(reasons)}.")


def labelled(examples: TokenDataset) -> TokenDataset:
    """Return what a phase can learn from that reads labels alone."""
    columns = examples.columns["labels"]
    has_label = [bool(np.any(np.not_equal(labels, NO_LABEL))) for labels in columns]
    return examples if all(has_label) else examples.where(has_label)


# --- from distill.distillation.distillation
# A distillation: a student and all that it learns from, loaded and checked, nothing trained yet.
#
# It is made on a task (`on_task`), on a corpus (`on_corpus`), by the recovery of a pruned model
# (`distill.pruning.rounds`) and by the benchmark of training.


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
                training_module = TRAINING_MODULES[phase.training_module](
                    student, self.teacher, phase.terms, seed=config.seed, steps=steps
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
