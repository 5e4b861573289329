"""A distillation on a task: its teachers, its student, and the texts that it learns from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.accuracy import SETTINGS_OF_RUN, another_rate, check_varied
from bertender.core.artifact import Artifact, Stopwatch, check_writable, write_timing
from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import ControlFindings, Findings, VocabularyFindings
from bertender.models.families import check_positions
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.examples import cut_at
from bertender.training.heads import HEADS
from bertender.training.loop import training_findings
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distillation import Distillation, Trained, phases_with_head
from distill.distillation.start import Start, start_student
from distill.distillation.texts import (
    Extended,
    TaughtTexts,
    remaining,
    with_augmented,
    with_unlabelled,
)
from distill.distillation.vocabulary import StudentTokens, student_tokens
from distill.losses.signals import Wanted
from distill.methods import METHODS
from distill.methods.method import Method
from distill.students.weights import with_head
from distill.teachers.teacher import Teacher, load_teachers
from distill.tokenizers import fitting_tokenizer
from distill.trained import TrainedModel, artifact_at, check_teacher, epoch_score, final_score

logger = logging.getLogger(__name__)

Compared = Callable[[PreTrainedModel, Sequence[Mapping[str, float]]], ControlFindings | None]
"""(trained student, its scores after each epoch) -> its comparison with a control"""


def no_control(student: PreTrainedModel, epochs: Sequence[Mapping[str, float]]) -> None:
    """Return the comparison of a run without a control."""


@dataclass(frozen=True)
class OnTask:
    """A distillation on a task, and further findings of its artifact."""

    distillation: Distillation
    task: Task
    """With the unlabelled texts, without the rewritten ones."""
    identity: tuple[Any, ...]
    """Inputs of the run besides the settings."""
    added: Mapping[str, Any]
    """How many texts were added to the task's own, of each kind that was asked for, and how many
    were left out by filters."""
    taught: TaughtTexts
    """All texts that it learns from, and the teachers."""
    cached: Wanted
    """Outputs of the teachers that are computed before the training and cached."""
    tokens: StudentTokens
    """Its tokenizer, and what remains of it."""
    vocabulary: VocabularyFindings | None
    """Of a vocabulary that was cut before the training."""

    def findings(self, trained: Trained, config: DistillConfig) -> Findings:
        """Return the findings of a trained student, without its control.

        Raises:
            ConstantError: it has learned nothing but one label.
        """
        training = training_findings(trained.reports, **self.added)
        tokenizer = self.distillation.tokenizer
        scores = final_score(trained.student, tokenizer, self.task)
        rate = another_rate(config)
        advice = f"{rate}, more epochs, or another start (teacher_layers, student)"
        check_varied(scores, self.task, config, ("method", *SETTINGS_OF_RUN), advice)
        return Findings(training=training, scores=scores, vocabulary=self.vocabulary)

    def write(
        self,
        trained: Trained,
        findings: Findings,
        compared: Compared = no_control,
        *,
        out: Path,
        stage: str,
        config: DistillConfig,
        parent: Artifact | None,
    ) -> None:
        """Write a trained student with its findings, and the run's duration next to it."""
        student, tokenizer = trained.student, self.distillation.tokenizer
        found = findings.model_copy(update={"control": compared(student, trained.last.epochs)})
        if self.tokens.remaining and self.tokens.cut_after_training:
            vocabulary = self.tokens.cut(student, self.task)
            tokenizer = self.tokens.remaining.tokenizer
            scores = final_score(student, tokenizer, self.task)
            found = found.model_copy(update={"vocabulary": vocabulary, "scores": scores})
        model = TrainedModel.classifier(student, tokenizer, self.task, found)
        model.write(out=out, stage=stage, config=config, parent=parent)
        write_timing(trained.timing, out)


def on_task(
    teacher: Artifact,
    task: Task,
    config: DistillConfig,
    method: Method | None = None,
    tokens: StudentTokens | None = None,
) -> OnTask:
    """Load and check all of a distillation on a task.

    Args:
        teacher: what the student learns from.
        task: what it learns.
        config: the settings.
        method: instead of the config's own.
        tokens: instead of those that the config asks for.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher, or the augmentation's words; or the vocabulary cannot
            be cut, or not to so few tokens.
        DataError: the file of unlabelled texts is wrong.
        ConstantError: a teacher predicts one label everywhere.
    """
    method = method or config.changed_method()
    check_texts_read(task, config)
    check_can_tag(method, task)
    extended = with_unlabelled(task, config)
    check_can_learn(task, extended, method)
    teachers = load_teachers(teacher, config.more_teachers, task)
    if method.learns_from_teacher:
        for each in teachers:
            check_teacher(each, task, config)
    start, student = new_student(teachers[0], method, extended.task, config)
    tokenizer, taught, learned, added = _taught(task, extended, teachers, start, student, config)
    cached = taught.cached(method, student)
    # a student in other tokens than the teacher learns from cached outputs alone
    own = config.changed_method()  # a control learns in the tokens of its student
    cut_first = not own.wants_teacher_tokens and bool(cached or not method.needs)
    read = tokens or student_tokens(
        tokenizer, student, taught.learned.train, task, config, cut_first=cut_first
    )
    vocabulary = None
    if read.cut_first:
        vocabulary = read.cut(student, task)
        taught = replace(taught, start=replace(start, reads_teacher_tokens=False))
        cached = taught.cached(method, student)
    clock = Stopwatch()
    distillation = Distillation(
        student=student,
        teacher=teachers[0].model,
        tokenizer=read.tokenizer,
        phases=phases_with_head(
            method.at(student.config.num_hidden_layers).phases, task.problem_type
        ),
        examples=partial(taught.examples, cached, read.tokenizer, clock),
        evaluate=lambda training_module, objective: epoch_score(
            training_module.student, read.tokenizer, task, config
        ),
        clock=clock,
        projections=start.projections,
    )
    return OnTask(distillation, learned, taught.identity, added, taught, cached, read, vocabulary)


def _taught(
    task: Task,
    extended: Extended,
    teachers: Sequence[Teacher],
    start: Start,
    student: PreTrainedModel,
    config: DistillConfig,
) -> tuple[PreTrainedTokenizerBase, TaughtTexts, Task, dict[str, Any]]:
    """Return the student's tokenizer, the texts that it learns from, the task without those that
    are rewritten, and how many were added.
    """
    settings = {"finished": start.is_teacher, **task.problem.tokenizer_settings}
    tokenizer = _cut_as_teacher(
        fitting_tokenizer(start.source, student, **settings),
        teachers[0],
        student,
        config.max_length,
    )
    read = TaughtTexts(teachers, start, extended.task, config)
    stay, left_out = remaining(extended.task, config, partial(read.logits, tokenizer))
    filtered = replace(read, stay=stay)
    learned = filtered.learned
    texts = with_augmented(learned, teachers, start, config)
    added = _added(config, task, learned, texts)
    if config.learns_unlabelled:
        added["unlabelled_left_out"] = {**extended.left_out, **left_out}
    taught = filtered.with_copies(texts.train.after(len(learned.train)))
    return tokenizer, taught, learned, added


def _cut_as_teacher(
    tokenizer: PreTrainedTokenizerBase,
    teacher: Teacher,
    student: PreTrainedModel,
    max_length: int | None,
) -> PreTrainedTokenizerBase:
    """Return a student's tokenizer with the longest input that is given, or else its teacher's.

    A student cannot read more than it has positions for.

    Raises:
        ConfigError: more is given than student or teacher have positions for.
    """
    if max_length is not None:
        check_positions(max_length, teacher.model.config)
        return cut_at(tokenizer, max_length, student.config)
    theirs = longest_input(load_tokenizer(teacher.artifact.path))
    return cut_at(tokenizer, min(theirs, longest_input(tokenizer)), student.config)


def check_sources_stay(out: Path, teacher: Artifact, config: DistillConfig) -> None:
    """Raise ArtifactError where writing at `out` would destroy work, or what is learned from."""
    check_writable(out, teacher)
    for source in filter(None, (config.student, config.augmentation_model, *config.more_teachers)):
        check_writable(out, artifact_at(str(source)))


def new_student(
    teacher: Teacher, method: Method, task: Task, config: DistillConfig
) -> tuple[Start, PreTrainedModel]:
    """Return where the student starts, and the student, which its teacher can serve."""
    head = partial(with_head, head=HEADS[task.problem_type])
    start, student = start_student(teacher, method, config, config.student, task, head=head)
    check_not_copy(student, teacher.model, config)
    _check_same_tokens(method, start, task)
    return start, student


def check_texts_read(task: Task, config: DistillConfig) -> None:
    """Raise ConfigError for settings of tasks whose texts have one label each, of other tasks."""
    names = ("unlabelled", "unlabelled_texts", "augmentation", "more_teachers")
    unread = [name for name in names if getattr(config, name)]
    unread += ["vocab_size"] if config.most_entries is not None else []
    if unread and not HEADS[task.problem_type].one_label:
        raise ConfigError(
            f"{', '.join(unread)}: for tasks whose texts have one label each, and task "
            f"{task.name!r} is one of {task.problem_type!r}. Leave out what is named."
        )


def check_can_learn(task: Task, extended: Extended, method: Method) -> None:
    """Raise ConfigError where there are no texts to learn from, or none with the labels needed.

    Args:
        task: that of the user; of a held-out file alone it has no training examples.
        extended: the same with the texts without labels that the filters leave.
        method: what it is learned by.
    """
    if len(task.train):
        return
    if not len(extended.task.train):
        left_out = ", ".join(f"{name} {count}" for name, count in extended.left_out.items())
        raise ConfigError(
            f"task {task.name!r} has no texts to learn from"
            f"{f' (left out: {left_out})' if left_out else ''}. Give texts without labels by "
            "--unlabelled FILE, which the teacher labels, or labelled ones by --train FILE."
        )
    by_labels = [phase.name for phase in method.phases if not (phase.needs or phase.masked)]
    if by_labels:
        raise ConfigError(
            f"method={method.name!r}: phase {', '.join(by_labels)} learns from labels alone, and "
            f"task {task.name!r} has none to learn from. Give --train FILE, or a method that "
            "learns from the teacher's outputs, such as distilbert."
        )


def check_can_tag(method: Method, task: Task) -> None:
    """Raise ConfigError for a method whose students cannot label words, of a task of words."""
    if HEADS[task.problem_type].per_token and not method.student.labels_words:
        others = [name for name, row in METHODS.items() if row.student.labels_words]
        raise ConfigError(
            f"method={method.name!r}: its student labels texts and cannot tag words, and task "
            f"{task.name!r} is one of {task.problem_type!r}. Methods that can: {', '.join(others)}."
        )


def _check_same_tokens(method: Method, start: Start, task: Task) -> None:
    """Raise ModelError where teacher and student would predict for different tokens."""
    per_token = HEADS[task.problem_type].per_token
    if per_token and method.needs and not start.reads_teacher_tokens:
        raise ModelError(
            f"student={start.source!r}: a tagger learns token by token, so that "
            "teacher and student must read the same ones, and these do not. Leave it out, or give "
            "an encoder with the teacher's vocabulary."
        )


def check_not_copy(
    student: PreTrainedModel, teacher: PreTrainedModel, config: DistillConfig
) -> None:
    """Raise ModelError where the student would not be smaller and no setting asks for that.

    An encoder that the student starts from may be so large; then only a warning is logged.
    """
    alike = type(student) is type(teacher) and student.num_parameters() == teacher.num_parameters()
    if not alike or config.layers is not None:
        return
    large = f"as large as the teacher, of {student.config.num_hidden_layers} layers"
    if config.student is None:
        raise ModelError(
            f"method {config.method!r}: its student would be {large}. Give layers, or another "
            "method."
        )
    logger.warning("student=%s: it is %s. Give layers for a smaller one", config.student, large)


def _added(config: DistillConfig, task: Task, extended: Task, texts: Task) -> dict[str, Any]:
    """Return how many texts were added to the task's own, of each kind that was asked for."""
    added: dict[str, Any] = {}
    if config.learns_unlabelled:
        added["unlabelled_texts"] = len(extended.train) - len(task.train)
    if config.augmentation:
        added["augmented_texts"] = len(texts.train) - len(extended.train)
    return added
