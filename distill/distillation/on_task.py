"""A distillation on a task: its teachers, its student and its training texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.fitting import epoch_score
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.findings import VocabularyFindings
from bertender.models.families import check_positions
from bertender.tasks.task import Task
from bertender.tasks.teacher_files import TeacherFile
from bertender.text.tokenizer import (
    CONTINUED_LABELS,
    continued_labels,
    load_tokenizer,
    longest_input,
)
from bertender.text.windows import WINDOWS, windows_of
from bertender.training.examples import TokenDataset, cut_at, usual_length
from bertender.training.heads import head_of
from bertender.training.heads.several import SeveralHead
from bertender.training.heads.texts import ChoiceHead, TextHead
from bertender.training.steps import Objective
from distill.augmentation.augment import augmented
from distill.distillation.config import DistillConfig
from distill.distillation.distillation import Distillation, phases_with_head
from distill.distillation.start import (
    Start,
    StudentTokens,
    check_start,
    new_student,
    student_tokens,
)
from distill.distillation.texts import (
    TrainingTexts,
    remaining,
    with_unlabelled,
    without_held_out,
)
from distill.losses.terms import HardLabels
from distill.methods import METHODS
from distill.methods.method import Method
from distill.teachers.encoders import Teacher, load_teachers
from distill.teachers.files import FileTeacher
from distill.tokenizers import fitting_tokenizer

logger = logging.getLogger(__name__)


class OnTask(Distillation):
    """A distillation on a task, loaded and checked.

    Args:
        teacher: artifact or file to learn from.
        task: task to learn.
        config: settings of the distillation.
        method: method in place of the config's.
        tokens: the student's tokens in place of the config's choice.

    Raises:
        UnknownNameError, ConfigError, ModelError: this teacher does not fit the method, its
            weights, the student's shape or the augmentation; or the vocabulary cannot be cut, or
            not to so few tokens.
        DataError: the file of unlabelled texts is malformed.
        ConstantError: a teacher predicts one label everywhere.
    """

    def __init__(
        self,
        teacher: Artifact | TeacherFile,
        task: Task,
        config: DistillConfig,
        method: Method | None = None,
        tokens: StudentTokens | None = None,
    ) -> None:
        own = config.changed_method()
        method = method or own
        check_start(method, config.student)
        check_task(config, method, task)
        file = teacher if isinstance(teacher, TeacherFile) and config.learns_unlabelled else None
        extended, left_out = with_unlabelled(task, config, file)
        check_can_learn(task, extended, left_out, method)
        check_gold(extended, config)
        head = head_of(task.problem).configured(config, extended)
        teaches = method.learns_from_teacher
        teachers = load_teachers(
            teacher, config.more_teachers, task, config.columns, for_all_heads=teaches
        )
        if teachers[0].head is not None and config.unlabelled_agreement:
            raise ConfigError(
                "unlabelled_agreement: the teachers predict one head each, and have nothing to "
                "agree on. Leave it out."
            )
        if teaches:
            for each in teachers:
                each.check_varied(task, config)
        start, student = new_student(teachers[0], method, extended, config)

        tokenizer = student_tokenizer(start, student, teachers[0], task)
        longest = student_max_length(tokenizer, teachers[0], extended, config)
        tokenizer = cut_at(tokenizer, longest, student.config)

        texts = TrainingTexts(teachers, start, extended, config)
        kept, filtered_out = remaining(extended, config, partial(texts.logits, tokenizer))
        texts = replace(texts, kept=kept)
        learned = texts.learned
        head.begin(student, texts.targets(tokenizer), start.model)
        added: dict[str, Any] = {}
        if config.learns_unlabelled:
            added["unlabelled_texts"] = len(learned.train) - len(task.train)
            added["unlabelled_left_out"] = {**left_out, **filtered_out}
        if config.augmentation:
            assert isinstance(teachers[0], Teacher)  # the settings allow no file here
            readers = (start.source, *(str(each.path) for each in teachers))
            more = augmented(learned, teachers[0].artifact, teachers[0].model, readers, config)
            copies = without_held_out(more.train.after(len(learned.train)), task)
            texts = texts.with_copies(copies)
            added["augmented_texts"] = len(copies)

        # a student with other tokens than the teacher can learn only from cached outputs; a
        # control uses the tokens of its student
        cached = texts.cached(method, student)
        cut_first = not own.wants_teacher_tokens and bool(cached or not method.needs)
        if windows_of(tokenizer) and "sentence_states" in cached:
            cut_first = False  # the cached states belong to the teacher's windows
        if tokens is None:
            train = texts.learned.train
            tokens = student_tokens(tokenizer, student, train, task, config, cut_first=cut_first)
        self.vocabulary: VocabularyFindings | None = None
        """Findings on a vocabulary that was cut before training."""
        if tokens.cut_first:
            self.vocabulary = tokens.cut(student, task)
            texts = replace(texts, start=replace(start, reads_teacher_tokens=False))
            cached = texts.cached(method, student)

        phases = method.at(student.config.num_hidden_layers).phases
        super().__init__(
            student,
            teachers[0].model,
            tokens.tokenizer,
            phases_with_head(phases, head),
            start.projections,
        )
        self.keeping = config.keeping(len(task.selection) > 0)
        self.config = config
        self.task = learned
        """The task with unlabelled texts, without augmented copies."""
        self.texts = texts
        """All training texts, and the teachers."""
        self.cached = cached
        """Teacher outputs that are cached before training."""
        self.tokens = tokens
        """The student's tokenizer and remaining tokens."""
        self.added: Mapping[str, Any] = added
        """How many texts of each kind were added to the task's own, and how many each filter left
        out."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Inputs of the run besides the settings: training texts, start and teachers."""
        teachers = (each.digest for each in self.texts.teachers)
        return self.texts.learned.fingerprint(), [self.texts.start.digest, *teachers]

    def examples(self) -> TokenDataset:
        return self.texts.examples(self.cached, self.tokenizer, self.clock)

    def evaluate(self, training_module: Any, objective: Objective) -> dict[str, float]:
        return epoch_score(training_module.student, self.tokenizer, self.task, self.config)


def student_tokenizer(
    start: Start, student: PreTrainedModel, teacher: Teacher | FileTeacher, task: Task
) -> PreTrainedTokenizerBase:
    """Return the student's tokenizer, which treats words and long texts as the teacher does."""
    settings = {"finished": start.is_teacher, **task.problem.tokenizer_settings}
    if not start.is_teacher and isinstance(teacher, Teacher):
        theirs = load_tokenizer(teacher.path)
        settings[CONTINUED_LABELS] = continued_labels(theirs)
        settings[WINDOWS] = windows_of(theirs)
    return fitting_tokenizer(start.source, student, **settings)


def student_max_length(
    tokenizer: PreTrainedTokenizerBase,
    teacher: Teacher | FileTeacher,
    task: Task,
    config: DistillConfig,
) -> int:
    """Return the student's longest input in tokens: the config's, or the shorter of the student's
    and the teacher's; with a teacher file, a length that suits the training texts.

    Raises:
        ConfigError: the teacher has fewer positions than the config's.
    """
    if config.max_length is not None:
        if isinstance(teacher, Teacher):
            check_positions(config.max_length, teacher.model.config)
        return config.max_length
    if isinstance(teacher, FileTeacher):
        return usual_length([task], tokenizer)
    return min(longest_input(load_tokenizer(teacher.path)), longest_input(tokenizer))


def check_gold(task: Task, config: DistillConfig) -> None:
    """Raise ConfigError for settings of the loss on gold labels that a teacher file lacks."""
    file = config.teacher_file
    if file is not None and config.changes_labels and not len(task.train.labelled):
        raise ConfigError(
            f"{config.as_set(config.changes_labels)}: it changes the loss with gold labels, and no "
            f"row of {file} has one. Name their column by --gold-column, or leave "
            "it out."
        )


def check_task(config: DistillConfig, method: Method, task: Task) -> None:
    """Raise ConfigError for settings or a method that do not fit this kind of task."""
    head = head_of(task.problem)
    names: tuple[str, ...] = ()
    why = ""
    if head.per_token:
        names = ("unlabelled_max_entropy", "unlabelled_agreement", "augmentation")
        names += () if task.problem.heads else ("more_teachers",)
        why = "a student learns it token by token, from one teacher that reads the same tokens"
    elif task.problem.gives_vectors:
        names = ("unlabelled_max_entropy", "unlabelled_agreement", "more_teachers")
        why = "vectors of several models have directions of their own, and are sure of nothing"
    elif not task.problem.names_labels:
        names = ("unlabelled_max_entropy", "unlabelled_agreement")
        why = "its answers are numbers, of which none is sure and no two are the same"
    unread = [name for name in names if getattr(config, name)]
    unread += ["vocab_size"] if head.per_token and config.most_entries is not None else []
    if unread:
        raise ConfigError(
            f"{', '.join(unread)}: task {task.name!r} is one of {task.problem_type!r}, and {why}. "
            "Leave out what is named."
        )
    if task.problem.keeps_vocabulary and config.vocab_floor > 1 and config.most_entries is None:
        raise ConfigError(
            f"vocab_floor={config.vocab_floor}: task {task.name!r} is one of "
            f"{task.problem_type!r}, whose vocabulary stays whole unless its size is set. Leave it "
            "out."
        )
    terms = [term for phase in method.phases for term in phase.terms]
    if config.changes_labels and not any(isinstance(t, HardLabels) and t.weight for t in terms):
        raise ConfigError(
            f"{config.as_set(config.changes_labels)}: method {method.name!r} has no loss with the "
            "labels that this would change. Take a method that learns from labels too, or leave it "
            "out."
        )
    if config.is_explicit("temperature") and config.temperature is not None and not head.softens:
        raise ConfigError(
            f"temperature={config.temperature:g}: it softens a distribution over labels, and task "
            f"{task.name!r} is one of {task.problem_type!r}, which has none. Leave it out."
        )
    of_texts = isinstance(head, TextHead | ChoiceHead | SeveralHead) and not head.per_token
    if not (of_texts or method.student.labels_words):
        others = [name for name, row in METHODS.items() if row.student.labels_words]
        raise ConfigError(
            f"method={method.name!r}: its student labels texts alone, and task "
            f"{task.name!r} is one of {task.problem_type!r}. Methods that can: {', '.join(others)}."
        )


def check_can_learn(
    task: Task, extended: Task, left_out: Mapping[str, int], method: Method
) -> None:
    """Raise ConfigError where there are no training texts, or none with the labels needed.

    Args:
        task: the user's task; without training examples where only a held-out file is given.
        extended: the task with the unlabelled texts that pass the filters.
        left_out: how many texts each filter left out.
        method: of the distillation.
    """
    if len(task.train):
        return
    if not len(extended.train):
        counts = ", ".join(f"{name} {count}" for name, count in left_out.items())
        raise ConfigError(
            f"task {task.name!r} has no texts to learn from"
            f"{f' (left out: {counts})' if counts else ''}. Give texts without labels by "
            "--unlabelled FILE, which the teacher labels, or labelled ones by --train FILE; or "
            "filters that leave some."
        )
    by_labels = [phase.name for phase in method.phases if not (phase.needs or phase.masked)]
    if by_labels:
        raise ConfigError(
            f"method={method.name!r}: phase {', '.join(by_labels)} learns from labels alone, and "
            f"task {task.name!r} has none to learn from. Give --train FILE, or a method that "
            "learns from the teacher's outputs, such as distilbert."
        )
