"""A distillation: a student, its teacher and its training data, trained phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Stopwatch, Timing
from bertender.core.build_once import in_order
from bertender.core.errors import ModelError
from bertender.metrics.metric import is_labelled
from bertender.training.config import LAST_EPOCH, TrainingConfig, computes_in_bf16
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads.head import Head
from bertender.training.loop import TrainingReport, planned, train
from bertender.training.optimizers import NO_RATES
from bertender.training.steps import LossParts, Objective
from distill.distillation.config import PhasedConfig
from distill.losses.signals import Signals, Wanted, read_signals
from distill.losses.training_modules import TRAINING_MODULES, TrainingModule
from distill.methods.method import Method, Phase
from distill.teachers.outputs import cached_in
from distill.trained import Tensors


@dataclass(frozen=True)
class Trained:
    """A trained student."""

    student: PreTrainedModel
    reports: Mapping[str, TrainingReport]
    """By phase name."""
    timing: Timing
    projections: Tensors = field(default_factory=dict)
    """Projections of the student's states to the teacher's width."""

    @property
    def last(self) -> TrainingReport:
        """The report of the last phase."""
        return [*self.reports.values()][-1]


class Distillation:
    """A student with its teacher and training data, loaded and checked, before any training.

    Subclasses distil on a task (`OnTask`), distil on a corpus (`OnCorpus`) and recover a pruned
    model (`distill.pruning.rounds`).

    Args:
        student: the model to train, in place.
        teacher: the model to learn from.
        tokenizer: the student's.
        phases: phases for the student's depth.
        projections: projections from earlier training; the others start at random.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        phases: tuple[Phase, ...],
        projections: Tensors | None = None,
    ) -> None:
        self.student = student
        self.teacher = teacher
        self.tokenizer = tokenizer
        self.phases = phases
        self.projections = dict(projections or {})
        self.keeping = LAST_EPOCH
        """Which epoch of the last phase is kept."""
        self.clock = Stopwatch()  # runs while a teacher does

    def examples(self) -> TokenDataset:
        """Return the tokenised training texts, with cached teacher outputs as columns."""
        raise NotImplementedError

    def evaluate(self, training_module: Any, objective: Objective) -> dict[str, float]:
        """Measure the module's student after an epoch of the last phase."""
        raise NotImplementedError

    def masked(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return a batch with some tokens masked, and their targets."""
        raise NotImplementedError

    def run(self, config: TrainingConfig, work: Path, description: str) -> Trained:
        """Train the student in all phases; an interrupted run continues in its phase.

        Each phase has its own optimizer, schedule and checkpoint folder. The end of a phase is
        saved as a checkpoint too: a run resumed in a later phase loads the student from there.

        Args:
            config: settings of the training.
            work: directory of the checkpoints.
            description: text of the progress bar.
        """
        reports: dict[str, TrainingReport] = {}
        wall = Stopwatch()
        with wall.running():
            student, examples, projections = self.student, self.examples(), dict(self.projections)
            for phase, folder, is_last in in_order(self.phases, work):
                settings = phase_settings(phase, config)
                texts = examples if phase.needs or phase.masked else labelled(examples)
                training_module = TRAINING_MODULES[phase.training_module](
                    student,
                    self.teacher,
                    phase.terms,
                    seed=config.seed,
                    steps=len(planned(texts, settings)),
                )
                if isinstance(training_module, TrainingModule):
                    projections |= training_module.load_learned(projections)
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
                    keeping=self.keeping if is_last else LAST_EPOCH,
                )
                student = training_module.finished()
        timing = Timing(
            wall_s=wall.seconds,
            training_s=sum(report.seconds for report in reports.values()),
            samples=sum(report.samples for report in reports.values()),
            teacher_s=self.clock.seconds,
        )
        return Trained(student, reports, timing, projections)

    def objective(self, phase: Phase, bf16: bool) -> DistillationObjective:
        """Return the loss of a phase."""
        depths = (m.config.num_hidden_layers for m in (self.student, self.teacher))
        prepare = self.masked if phase.masked else None
        reads = phase.reads(*depths)
        return DistillationObjective(self.teacher, reads, bf16, prepare=prepare, clock=self.clock)


class DistillationObjective:
    """The loss of a training module. The teacher runs only for outputs that are not cached.

    Args:
        teacher: frozen, put into eval mode, and moved to the device of the batches.
        reads: teacher signals that the loss reads, and their layers.
        bf16: run the teacher in bf16, like the student.
        prepare: (batch, step) -> the batch that both models read; None leaves it unchanged.
        clock: runs while the teacher does.
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        reads: Wanted,
        bf16: bool = False,
        *,
        prepare: Callable[[TensorBatch, int], TensorBatch] | None = None,
        clock: Stopwatch | None = None,
    ) -> None:
        self.reads = reads
        self.bf16 = bf16
        self.prepare = prepare
        self.clock = clock or Stopwatch()
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if self.prepare is not None:
            batch = self.prepare(batch, step)
        parts: LossParts = model(batch, self._teacher_signals(batch), step)
        return parts

    def _teacher_signals(self, batch: TensorBatch) -> Signals:
        cached = cached_in(batch, self.reads)
        online = {signal: self.reads[signal] for signal in self.reads if signal not in cached}
        if not online:
            nothing = Signals(torch.empty(0), self.teacher.config.num_hidden_layers)
            return replace(nothing, **cached)
        device = batch["input_ids"].device
        with self.clock.running():
            self.teacher.to(device)
            # the Trainer's own autocast does not reach the teacher on a GPU
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                return replace(read_signals(self.teacher, batch, online), **cached)


def phase_settings(phase: Phase, config: TrainingConfig) -> TrainingConfig:
    """Return the config of one phase.

    The last phase takes the config as it is. Earlier phases take its `earlier_` fields, else the
    phase's own settings, else the config's.
    """
    if phase.epochs is None:
        return config
    assert isinstance(config, PhasedConfig)  # only its methods have earlier phases
    wanted = {"epochs": config.earlier_epochs, "learning_rate": config.earlier_learning_rate}
    explicit = {name: value for name, value in wanted.items() if value is not None}
    return config.model_copy(update={"epochs": phase.epochs, **phase.settings, **explicit})


def phases_with_head(phases: Iterable[Phase], head: Head) -> tuple[Phase, ...]:
    """Return the phases with their terms on labels and logits set to a head."""

    def with_head(term: Any) -> Any:
        return replace(term, head=head) if hasattr(term, "head") else term

    return tuple(replace(phase, terms=tuple(map(with_head, phase.terms))) for phase in phases)


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
    """Return the labelled examples, for a phase that learns from labels alone."""
    columns = examples.columns["labels"]
    has_label = [*map(is_labelled, columns)]
    return examples if all(has_label) else examples.where(has_label)
