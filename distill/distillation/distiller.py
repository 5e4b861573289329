"""`distill`: a student trained on what its teacher predicts, and its control."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from bertender.comparison.accuracy import found_constant
from bertender.core.artifact import Artifact
from bertender.core.findings import ConstantFindings, ControlFindings, ControlRun, Gain
from bertender.metrics.scores import LabelSet, paired_change
from bertender.models.families import FAMILIES, encoder_layers, family_name
from bertender.problems.problem import NO_LABEL
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from bertender.training.loop import Writer, trained_artifact
from distill.distillation.config import StudentConfig
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distillation import Trained, phase_settings
from distill.distillation.on_task import Compared, OnTask, check_sources_stay, no_control, on_task
from distill.distillation.unlabelled_config import FilteredConfig
from distill.distillation.vocabulary import StudentTokens
from distill.losses.signals import Wanted
from distill.losses.terms import HardLabels
from distill.methods.method import Method, Phase, one_phase
from distill.trained import evaluated

# --- from distill.distillation.computation
# Computation of a distillation, counted in multiply-accumulates of its models' layers a token.
#
# It is counted instead of timed, so that equal runs have equal counts. Of each model, the weights
# of
# its layers count as often as they run; embedding tables are only looked up. A training step
# costs
# three passes forward (one forward, two backward).

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
        runs_teacher = phase.uses_teacher_layers or not _is_cached(
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


# --- from distill.distillation.control
# The control of a distillation: the very same student, trained on the labels alone.
#
# What a student scores above its control is what distilling gave. It is trained after the
# student,
# from the same start: for the epochs of the method's last phase, and for those that cost as much
# computation as the whole distillation. The better one on the texts to choose by is compared.

MOST_EPOCHS = 20
"""Of a control at equal computation, so that a large teacher or many unlabelled texts do not cost
days, and few labels are not learned by heart."""


@dataclass(frozen=True)
class Controls:
    """Trained controls of a student, by their epochs, shortest first."""

    ready: OnTask
    """The distillation of the student."""
    config: DistillConfig
    trained: Mapping[int, Trained]
    equal_epochs: int
    """At equal computation, however many."""

    def compared(
        self, student: PreTrainedModel, epochs: Sequence[Mapping[str, float]]
    ) -> ControlFindings:
        """Return the gain of the trained student over the better control.

        Args:
            student: as it was trained.
            epochs: its scores after each, on the texts to choose by.
        """
        runs = tuple(self._run(epochs) for epochs in self.trained)
        better = max(runs, key=lambda run: run.score)  # the shorter one of equals
        gain, score, constant = self._gain(student, self.trained[better.epochs].student)
        return ControlFindings(
            epochs=better.epochs,
            score=score,
            gain=gain,
            n=len(self.ready.task.dev),
            choice=epochs[-1][self.ready.task.metric],
            teacher_layers=teacher_layers_of(self.config),
            equal_epochs=self.equal_epochs,
            runs=runs,
            constant=constant,
        )

    def _run(self, epochs: int) -> ControlRun:
        last = self.trained[epochs].last.epochs[-1]
        return ControlRun(epochs=epochs, score=last[self.ready.task.metric])

    def _gain(
        self, student: PreTrainedModel, control: PreTrainedModel
    ) -> tuple[Gain, float, ConstantFindings | None]:
        """Return the gain, and the score of the control with the one label that it predicts."""
        task, tokenizer = self.ready.task, self.ready.distillation.tokenizer
        (_, ours), (score, theirs) = (
            evaluated(model, tokenizer, task, task.dev) for model in (student, control)
        )
        labels = LabelSet(len(task.labels), task.labels)
        change = paired_change(task.metric, task.dev.label_ids, theirs, ours, labels)
        gain = Gain(value=change.value, low=change.low, high=change.high)
        return gain, score.value, found_constant(task, task.dev, theirs)


def train_controls(
    ready: OnTask, teacher: Artifact, task: Task, config: DistillConfig, work: Path
) -> Controls:
    """Train the controls of a distillation; an interrupted run continues where it was.

    Args:
        ready: the distillation.
        teacher: its teacher, which a student may start from.
        task: as the distillation was made on.
        config: its settings.
        work: directory of the checkpoints of all controls.
    """
    equal = equal_epochs(ready, config)
    trained = {}
    for epochs in control_epochs(config.epochs, equal):
        control, settings = control_of(teacher, task, config, epochs, ready.tokens)
        folder, title = work / f"{epochs}-epochs", f"control of {epochs} epochs"
        trained[epochs] = control.distillation.run(settings, folder, title)
    return Controls(ready, config, trained, equal)


def control_epochs(of_method: int, equal: int) -> Iterable[int]:
    """Return the epochs of each control: the method's, and those of equal computation.

    The latter are MOST_EPOCHS at most, and no fewer than the method's.
    """
    return dict.fromkeys((of_method, max(of_method, min(equal, MOST_EPOCHS))))


def control_of(
    teacher: Artifact,
    task: Task,
    config: DistillConfig,
    epochs: int,
    tokens: StudentTokens | None = None,
) -> tuple[OnTask, DistillConfig]:
    """Return a control of a distillation, ready to train, and its settings.

    Args:
        teacher, task, config: of the distillation.
        epochs: of the control.
        tokens: the student's.
    """
    nothing_added = {name: DistillConfig.model_fields[name].default for name in _ADDED}
    settings = config.model_copy(update={**nothing_added, "epochs": epochs})
    on_labels = _on_labels(config.changed_method())
    return on_task(teacher, task, settings, on_labels, tokens), settings


_ADDED = (
    *sorted(FilteredConfig.model_fields.keys() - TrainingConfig.model_fields.keys()),
    "augmentation",
    "control",
    "more_teachers",
    "unlabelled_agreement",
)
"""Settings that a control does not have."""


def teacher_layers_of(config: DistillConfig) -> str | None:
    """Return the layers that a student starts from as the setting has them, if it takes some."""
    kind, of_all = config.row.student, config.student is not None and not config.layers
    if of_all or config.hidden_size or not kind.layer_by_layer or "teacher_layers" in kind.lacks:
        return None
    chosen = config.teacher_layers or config.row.start_layers
    return chosen if isinstance(chosen, str) else ",".join(map(str, chosen))


def _on_labels(method: Method) -> Method:
    """Return a method with the same student that learns from labels alone."""
    return replace(method, phases=one_phase(HardLabels(weight=1.0)))


# --- from distill.distillation.distiller
# Distilling: a student trained on what its teacher predicts, by a row of METHODS.
#
# teacher artifact + task + DistillConfig -> `on_task` -> `Distillation.run` -> student artifact
# With `control`, the same student learns from labels alone after it (`train_controls`).


def distill(teacher: Artifact, task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Train a student of `teacher` on a task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher, or the augmentation's words; raised before training
            starts.
        DataError: the file of unlabelled texts is wrong.
        ConstantError: the teacher predicts one label everywhere; or the student does, whose
            checkpoints stay.
    """
    config.check_rules()
    check_sources_stay(out, teacher, config)  # before the teacher reads every text
    ready = on_task(teacher, task, config)

    def train(work: Path) -> Writer:
        trained = ready.distillation.run(config, work, f"distill {out.name}")
        findings = ready.findings(trained, config)
        compared: Compared = no_control
        if config.control:
            compared = train_controls(ready, teacher, task, config, work / "control").compared
        return partial(ready.write, trained, findings, compared)

    return trained_artifact(out, "distill", config, train, identity=ready.identity, parent=teacher)
