"""The phases of a distillation: the settings, the loss and the texts of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.timing import Stopwatch
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads import HEADS, Head
from bertender.training.objective import LossParts
from distill.distillation.config import PhasedConfig
from distill.losses import NO_LABEL
from distill.losses.signals import Signals, Wanted, read_signals
from distill.methods.method import Method
from distill.methods.phase import Phase
from distill.teachers.outputs import cached_in

__all__ = [
    "DistillationObjective",
    "Masked",
    "check_compatible",
    "labelled",
    "phase_settings",
    "phases_with_head",
    "unmasked",
]


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
