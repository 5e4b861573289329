"""The control of a distillation: the very same student, trained on the labels alone.

What a student scores above its control is what distilling gave. It is trained after the student,
from the same start: for the epochs of the method's last phase, and for those that cost as much
computation as the whole distillation. The better one on the texts to choose by is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.findings import ConstantFindings, ControlFindings, ControlRun, Gain
from bertender.measure.constant import found_constant
from bertender.metrics.changes import paired_change
from bertender.metrics.records import LabelSet
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from distill.distillation.computation import equal_epochs
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distillation import Trained
from distill.distillation.on_task import OnTask, on_task
from distill.distillation.unlabelled_config import FilteredConfig
from distill.distillation.vocabulary import StudentTokens
from distill.losses.terms import HardLabels
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.scoring import evaluated

__all__ = [
    "MOST_EPOCHS",
    "Controls",
    "control_epochs",
    "control_of",
    "teacher_layers_of",
    "train_controls",
]

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
