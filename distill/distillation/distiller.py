"""`distill`: train a student on its teacher's outputs by a method of METHODS, and its control.

The control is the same student trained on labels alone. The student's score above its control is
the gain of distillation. Controls start from the same weights (a static student's token shares are
those of its own texts) and train for the epochs of the method's last phase, and for as many epochs
as cost the computation of the whole distillation. The student is compared with the control that
scores better on the validation texts.

A teacher file provides the control's labels where texts have none, and its agreement with the
student is recorded.

`OnTask` builds the student and its training data; `Distillation` trains it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import PreTrainedModel

from bertender.comparison.accuracy import (
    SETTINGS_OF_RUN,
    another_rate,
    answers,
    check_varied,
    found_constant,
)
from bertender.comparison.calibration import reliability_of
from bertender.comparison.fitting import (
    as_classifier,
    evaluated,
    final_score,
    fit_decoding,
    fit_thresholds,
)
from bertender.core.artifact import Artifact, check_writable, write_timing
from bertender.core.build_once import work_directory
from bertender.core.errors import ConfigError
from bertender.core.findings import ControlFindings, ControlRun, Findings, Gain, TeacherFileFindings
from bertender.core.machine import is_main_process, wait_for_processes
from bertender.metrics import METRICS, paired_change, score
from bertender.metrics.metric import LabelSet, is_labelled
from bertender.models.families import FAMILIES, encoder_layers, family_name
from bertender.problems.problem import Outputs
from bertender.tasks.task import Split, Task, with_model_labels
from bertender.tasks.teacher_files import (
    TeacherFile,
    check_outputs,
    held_out_outputs,
    read_teacher_file,
)
from bertender.training.config import TrainingConfig
from bertender.training.loop import training_findings
from distill.distillation.config import (
    FILE_SETTINGS,
    DistillConfig,
    FilteredConfig,
    StudentConfig,
    check_own_start,
)
from distill.distillation.distillation import Trained, phase_settings
from distill.distillation.on_task import OnTask
from distill.distillation.start import StudentTokens
from distill.losses.terms import HardLabels
from distill.methods.method import one_phase
from distill.trained import artifact_at, write_trained

logger = logging.getLogger(__name__)

MOST_EPOCHS = 20
"""Epoch limit of a control at equal computation. Without it, a large teacher or many unlabelled
texts would cost days, and a control would overfit few labels."""
PASSES_OF_STEP = 3
"""Cost of a training step in forward passes: one forward, two for backward."""


def distill_from_file(task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Train a student on the rows of `config.teacher_file` and write it as a torch artifact.

    Args:
        task: its held-out texts score the student, and its validation texts choose the epoch. Its
            training texts are ignored.
        config: settings of the distillation.
        out: directory of the artifact.

    Raises:
        ConfigError: the file does not fit the task, or has none of its labels.
        DataError: the file is malformed. Further errors are those of `distill`.
    """
    assert config.teacher_file is not None
    config.check_rules()
    check_own_start(config)
    file = read_teacher_file(config.teacher_file, task, config.columns)
    check_outputs(file)
    if len(task.train):
        logger.warning(
            "task %s: the %d training texts of the task are not learned from: those of %s are",
            *(task.name, len(task.train), file.path),
        )
    mapped = with_model_labels(
        task, file.labels, task.source.get("label_map"), f"the teacher {file.path}"
    )
    return distill(file, replace(mapped, train=Split((), ())), config, out)


def distill(
    teacher: Artifact | TeacherFile, task: Task, config: DistillConfig, out: Path
) -> Artifact:
    """Train a student of `teacher` on a task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: this teacher does not fit the method, its
            weights, the student's shape or the augmentation; raised before training starts.
        DataError: the file of unlabelled texts is malformed.
        ConstantError: the teacher or the trained student predicts one label everywhere; the
            student's checkpoints stay.
    """
    config.check_rules()
    if config.control:
        check_control(teacher, task)
    parent = teacher if isinstance(teacher, Artifact) else None
    check_writable(out, parent)  # before the teacher reads every text
    for source in filter(None, (config.student, config.augmentation_model, *config.more_teachers)):
        check_writable(out, artifact_at(str(source)))
    distillation = OnTask(teacher, task, config)
    with work_directory(out, "distill", config.shaping(), *distillation.identity) as work:
        trained = distillation.run(config, work, f"distill {out.name}")
        scores = final_score(trained.student, distillation.tokenizer, distillation.task)
        rate = another_rate(config)
        advice = f"{rate}, more epochs, or another start (teacher_layers, student)"
        check_varied(scores, distillation.task, config, ("method", *SETTINGS_OF_RUN), advice)
        findings = Findings(
            training=training_findings(trained.reports, **distillation.added),
            scores=scores,
            vocabulary=distillation.vocabulary,
            teacher_file=file_findings(distillation, trained.student, teacher),
        )
        controls = None
        if config.control:
            controls = Controls.train(distillation, teacher, task, config, work / "control")

        if is_main_process():
            tokenizer, tokens = distillation.tokenizer, distillation.tokens
            if controls is not None:
                findings = findings.model_copy(update={"control": controls.compared(trained)})
            if tokens.remaining and tokens.cut_after_training:
                vocabulary = tokens.cut(trained.student, distillation.task)
                tokenizer = tokens.remaining.tokenizer
                scores = final_score(
                    trained.student, tokenizer, distillation.task, scores.thresholds
                )
                findings = findings.model_copy(update={"vocabulary": vocabulary, "scores": scores})
            write_trained(
                trained.student,
                tokenizer,
                distillation.task,
                findings,
                out=out,
                stage="distill",
                config=config,
                parent=parent,
            )
            write_timing(trained.timing, out)
        wait_for_processes()
    return Artifact.load(out)


@dataclass(frozen=True)
class Controls:
    """Trained controls of a student, by number of epochs, shortest first."""

    distillation: OnTask
    """Distillation of the student."""
    trained: dict[int, Trained]
    equal_epochs: int
    """Epochs at equal computation, before the limit MOST_EPOCHS."""

    @classmethod
    def train(
        cls,
        distillation: OnTask,
        teacher: Artifact | TeacherFile,
        task: Task,
        config: DistillConfig,
        work: Path,
    ) -> Controls:
        """Train the controls of a distillation; an interrupted run continues where it was.

        Args:
            distillation: of the student.
            teacher, task, config: of the distillation.
            work: directory of the checkpoints of all controls.
        """
        if isinstance(teacher, TeacherFile):
            task = with_hard_labels(distillation.task, teacher)
        equal = equal_epochs(distillation, config, len(task.train.labelled))
        trained = {}
        for epochs in control_epochs(config.epochs, equal):
            control, settings = control_of(teacher, task, config, epochs, distillation.tokens)
            folder, title = work / f"{epochs}-epochs", f"control of {epochs} epochs"
            trained[epochs] = control.run(settings, folder, title)
        return cls(distillation, trained, equal)

    def compared(self, student: Trained) -> ControlFindings:
        """Return the gain of the trained student over the better control."""
        task, tokenizer = self.distillation.task, self.distillation.tokenizer
        runs = tuple(
            ControlRun(epochs=epochs, score=control.last.kept[task.metric])
            for epochs, control in self.trained.items()
        )
        better = max(runs, key=lambda run: run.score)  # the shorter one on a tie
        control = self.trained[better.epochs].student
        if task.problem.has_thresholds:  # the student has its own since its final score
            fit_thresholds(control, tokenizer, task)
        (_, ours), (score, theirs) = (
            evaluated(each, tokenizer, task, task.dev, fit_decoding(each, tokenizer, task))
            for each in (student.student, control)
        )
        labels = LabelSet(len(task.labels), task.labels)
        change = paired_change(task.metric, task.dev.label_ids, theirs, ours, labels)
        return ControlFindings(
            epochs=better.epochs,
            score=score.value,
            gain=Gain(value=change.value, low=change.low, high=change.high),
            n=len(task.dev),
            choice=student.last.kept[task.metric],
            teacher_layers=teacher_layers_of(self.distillation.config),
            equal_epochs=self.equal_epochs,
            runs=runs,
            constant=found_constant(task, task.dev, theirs),
        )


def control_epochs(of_method: int, equal: int) -> Iterable[int]:
    """Return the epochs of each control: the method's, and the epochs of equal computation.

    The second number is at most MOST_EPOCHS and at least the method's.
    """
    return dict.fromkeys((of_method, max(of_method, min(equal, MOST_EPOCHS))))


def control_of(
    teacher: Artifact | TeacherFile,
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
    of_texts = FilteredConfig.model_fields.keys() - TrainingConfig.model_fields.keys()
    more = ("augmentation", "control", "more_teachers", "unlabelled_agreement", "teacher_file")
    added = (*of_texts, *more, *FILE_SETTINGS)
    nothing_added = {name: DistillConfig.model_fields[name].default for name in added}
    settings = config.model_copy(update={**nothing_added, "epochs": epochs})
    on_labels = replace(config.changed_method(), phases=one_phase(HardLabels(weight=1.0)))
    return OnTask(teacher, task, settings, on_labels, tokens), settings


def teacher_layers_of(config: DistillConfig) -> str | None:
    """Return the setting `teacher_layers`; None for a student that takes no chosen layers."""
    kind, of_all = config.row.student, config.student is not None and not config.layers
    if of_all or config.hidden_size or not kind.layer_by_layer or "teacher_layers" in kind.lacks:
        return None
    chosen = config.teacher_layers or config.row.start_layers
    return chosen if isinstance(chosen, str) else ",".join(map(str, chosen))


def equal_epochs(distillation: OnTask, config: StudentConfig, labelled: int | None = None) -> int:
    """Return the epochs on labels alone that cost at least as much as the distillation.

    Args:
        distillation: of the student.
        config: its settings.
        labelled: texts in an epoch; by default the labelled texts of the distillation.
    """
    student = weights_that_run(distillation.student)
    epoch = PASSES_OF_STEP * student * (labelled or _labelled(distillation))
    return math.ceil(distillation_cost(distillation, config) / epoch)


def distillation_cost(distillation: OnTask, config: StudentConfig) -> int:
    """Return the cost of student and teachers over all phases, each text as one token.

    The unit is a multiply-accumulate in the models' layers, not time, so that equal runs have
    equal costs. Cached outputs count once, even if an earlier run computed them.
    """
    models, cached = (distillation.student, distillation.teacher), distillation.cached
    depths = [model.config.num_hidden_layers for model in models]
    student, teacher = map(weights_that_run, models)
    cost = 0
    for phase in distillation.phases:
        reads = phase.reads(*depths).items()
        is_cached = all(name in cached and layers <= cached[name] for name, layers in reads)
        runs_teacher = phase.uses_teacher_layers or not is_cached
        texts = len(distillation.texts.learned.train) if phase.needs else _labelled(distillation)
        step = PASSES_OF_STEP * student + teacher * runs_teacher
        cost += step * texts * phase_settings(phase, config).epochs
    if cached:
        teachers = sum(weights_that_run(each.model) for each in distillation.texts.teachers)
        cost += len(distillation.texts.task.train) * teachers
    return cost


def weights_that_run(model: PreTrainedModel) -> int:
    """Return the number of weights that a token meets in the layers; shared weights count each use.

    In an architecture with unknown layers, all weights count except embedding tables, which are
    only looked up.
    """
    if family_name(model.config) in FAMILIES:
        weights = (each for layer in encoder_layers(model) for each in layer.parameters())
    else:
        parts = (part for part in model.modules() if not isinstance(part, nn.Embedding))
        weights = (each for part in parts for each in part.parameters(recurse=False))
    return sum(each.numel() for each in weights)


def _labelled(distillation: OnTask) -> int:
    labels = distillation.texts.learned.train.label_ids
    return sum(map(is_labelled, labels))


def check_control(teacher: Artifact | TeacherFile, task: Task) -> None:
    """Raise ConfigError where a control has no labels, or where it is the student: of a file that
    has hard labels alone."""
    if not isinstance(teacher, TeacherFile):
        if not len(task.train.labelled):
            raise ConfigError(
                f"control=True: it learns from labels alone, and task {task.name!r} has no "
                "labelled texts. Give --train FILE, or leave it out."
            )
    elif teacher.weights is None and (
        teacher.form == "labels" or not teacher.kind.has_probabilities
    ):
        raise ConfigError(
            f"control=True: {teacher.path} has labels without probabilities or confidence, so "
            "that the student is its own control. Leave it out."
        )


def with_hard_labels(task: Task, file: TeacherFile) -> Task:
    """Return the task with a label for each training text: gold, or else the teacher file's."""
    train = task.train
    decided = file.kind.decided(file.of_texts(train.examples))
    targets = (
        own if is_labelled(own) else made
        for own, made in zip(train.label_ids, decided, strict=True)
    )
    return replace(task, train=replace(train, label_ids=tuple(targets)))


def file_findings(
    distillation: OnTask, student: PreTrainedModel, teacher: Artifact | TeacherFile
) -> TeacherFileFindings | None:
    """Return the findings on a teacher file for the student's card; None for a teacher model.

    Agreement is measured on held-out texts for which the teacher file, or the held-out file
    itself, has outputs.

    Args:
        distillation: source of the held-out texts.
        student: trained model.
        teacher: of the distillation.
    """
    if not isinstance(teacher, TeacherFile):
        return None
    task, labels = distillation.task, distillation.task.labels
    found, predictions = answers(as_classifier(student, distillation.tokenizer, task), task.dev)
    own = reliability_of(task.problem, found, task.dev, labels)
    theirs = held_out_outputs(teacher, task, distillation.config.columns)
    return TeacherFileFindings(
        path=str(teacher.path),
        sha256=teacher.digest,
        form=teacher.form,
        rows=len(teacher.examples),
        gold=len(teacher.gold_by_text),
        calibration_error=own and own.ece,
        **(_held_out_findings(teacher, task, predictions, theirs) if theirs else {}),
    )


def _held_out_findings(
    file: TeacherFile, task: Task, student_predictions: Any, teacher_outputs: Any
) -> dict[str, Any]:
    """Return the findings on held-out texts for which the teacher has outputs.

    Args:
        file: the teacher.
        task: source of the held-out texts.
        student_predictions: predictions on all held-out texts.
        teacher_outputs: teacher outputs by text.
    """
    rows = [row for row, example in enumerate(task.dev.examples) if example in teacher_outputs]
    both = task.dev.where([example in teacher_outputs for example in task.dev.examples])
    outputs = np.stack([teacher_outputs[example] for example in both.examples])
    decided = file.kind.decided(outputs)
    logits = file.kind.logits(outputs)
    count: dict[str, Any] = {"label_count": len(task.labels), "labels": task.labels}
    reads_logits = METRICS[task.metric].reads_logits
    answered: Any = logits if reads_logits else task.problem.gather(decided)
    own = [student_predictions[row] for row in rows]
    place = np.zeros(1, dtype=np.int64)
    as_outputs = [Outputs(row[None], place) for row in logits]
    reliability = reliability_of(task.problem, as_outputs, both, task.labels)
    return {
        "held_out": len(both),
        "score": score(task.metric, both.label_ids, answered, **count).value,
        "agreement": score(file.kind.agreement, decided, task.problem.gather(own), **count).value,
        "teacher_calibration_error": reliability and reliability.ece,
    }
