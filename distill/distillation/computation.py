"""Computation of a distillation, counted in multiply-accumulates of its models' layers a token.

It is counted instead of timed, so that equal runs have equal counts. Of each model, the weights of
its layers count as often as they run; embedding tables are only looked up. A training step costs
three passes forward (one forward, two backward).
"""

from __future__ import annotations

import math

from torch import nn
from transformers import PreTrainedModel

from bertender.models.families import FAMILIES, encoder_layers, family_name
from distill.distillation.config import StudentConfig
from distill.distillation.on_task import OnTask
from distill.distillation.phases import phase_settings
from distill.losses import NO_LABEL
from distill.losses.signals import Wanted
from distill.methods.phase import Phase

__all__ = ["distillation_cost", "equal_epochs", "weights_that_run"]

PASSES_OF_STEP = 3
"""Passes forward that a training step costs."""


def equal_epochs(ready: OnTask, config: StudentConfig) -> int:
    """Return the epochs on labels alone that cost at least as much as the distillation."""
    student = weights_that_run(ready.distillation.student)
    epoch = PASSES_OF_STEP * student * _labelled(ready)
    return math.ceil(distillation_cost(ready, config) / epoch)


def distillation_cost(ready: OnTask, config: StudentConfig) -> int:
    """Return the cost of student and teachers over all phases, each text as one token.

    Cached outputs count once, whether or not an earlier run has computed them.
    """
    depths = [m.config.num_hidden_layers for m in (ready.distillation.student, _teacher(ready))]
    student, teacher = (weights_that_run(m) for m in (ready.distillation.student, _teacher(ready)))
    cost = 0
    for phase in ready.distillation.phases:
        runs_teacher = phase.training_module.uses_teacher_layers or not _is_cached(
            phase.reads(*depths), ready.cached
        )
        step = PASSES_OF_STEP * student + teacher * runs_teacher
        cost += step * _texts(ready, phase) * phase_settings(phase, config).epochs
    if ready.cached:
        cost += len(ready.taught.task.train) * sum(
            weights_that_run(each.model) for each in ready.taught.teachers
        )
    return cost


def weights_that_run(model: PreTrainedModel) -> int:
    """Return how many weights a token meets in a model's layers, shared ones as often as they run.

    Of an architecture whose layers are unknown, all weights count but those of embedding tables.
    """
    if family_name(model.config) in FAMILIES:
        weights = (each for layer in encoder_layers(model) for each in layer.parameters())
    else:
        parts = (part for part in model.modules() if not isinstance(part, nn.Embedding))
        weights = (each for part in parts for each in part.parameters(recurse=False))
    return sum(each.numel() for each in weights)


def _teacher(ready: OnTask) -> PreTrainedModel:
    return ready.distillation.teacher


def _is_cached(reads: Wanted, cached: Wanted) -> bool:
    """Return whether all that a phase reads of the teacher is computed before the training."""
    return all(signal in cached and layers <= cached[signal] for signal, layers in reads.items())


def _texts(ready: OnTask, phase: Phase) -> int:
    """Return how many texts an epoch of a phase has."""
    return len(ready.taught.learned.train) if phase.needs else _labelled(ready)


def _labelled(ready: OnTask) -> int:
    return sum(label != NO_LABEL for label in ready.taught.learned.train.label_ids)
