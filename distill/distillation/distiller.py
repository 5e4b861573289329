"""Distilling: a student trained on what its teacher answers, by a row of METHODS.

teacher artifact + task + DistillConfig
  -> the method's student, and a trainee for each of its phases
  -> `phases.train_phases` -> student artifact
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BeforeValidator, Field, model_validator
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact, refuse_unwritable
from bertender.core.config import Rule, parts_of
from bertender.core.distributed import on_main_process
from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import Findings
from bertender.core.timing import Stopwatch, Timing, write_timing
from bertender.core.work import work_directory
from bertender.tasks.task import Task
from bertender.training.config import computes_in_bf16
from bertender.training.findings import training_findings
from bertender.training.loop import TrainingReport
from distill.augmentation.augment import AugmentedConfig
from distill.data import fitting_tokenizer
from distill.distillation.cached_outputs import choose_kept, student_examples
from distill.distillation.config import StudentConfig
from distill.distillation.phases import refuse_misfits, task_objective, train_phases
from distill.distillation.start import Start, find_start
from distill.distillation.texts import with_augmented, with_unlabelled
from distill.methods import Method
from distill.scoring import choice_score, final_score
from distill.teachers.teacher import Teacher, load_teachers
from distill.writing import artifact_at, write_classifier

__all__ = ["RULES", "DistillConfig", "distill"]


RULES: Mapping[str, Rule[DistillConfig]] = {
    "texts that nobody labels": Rule(
        lambda config: not config.changed_method().needs,
        "method {method!r} learns from labels alone, which these texts do not have. Leave out what "
        "is named, or choose a method that needs the teacher.",
        frozenset({"unlabelled", "unlabelled_texts"}),
        beyond_default=True,
    ),
    "teachers that nobody asks": Rule(
        lambda config: bool(config.more_teachers) and "logits" not in config.changed_method().needs,
        "method {method!r} reads no logits, and only these are averaged. Leave it out, or choose a "
        "method that reads them.",
        frozenset({"more_teachers"}),
    ),
}
"""Conflicts of settings."""


logger = logging.getLogger(__name__)


class DistillConfig(StudentConfig, AugmentedConfig):
    """Settings of `distill`."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    student: str | None = Field(
        None,
        description="folder, packaged encoder or hub name that the student starts from, with its "
        "own vocabulary; the teacher by default",
    )
    more_teachers: Annotated[tuple[Path, ...], BeforeValidator(parts_of)] = Field(
        (), description="more artifacts by commas, whose answers are averaged with the teacher's"
    )
    unlabelled: Path | None = Field(
        None, description="more texts to learn from: .txt, CSV, TSV, JSONL or Parquet"
    )
    unlabelled_texts: int = Field(
        0,
        ge=0,
        description="learn from so many unlabelled texts too, at most, of those that come with the "
        "task (docs has some)",
    )
    teacher_cache_mb: int = Field(
        4096,
        ge=0,
        description="most MB of the teacher's answers to keep on disk; where they are larger, the "
        "teacher runs in each step",
    )

    @model_validator(mode="after")
    def _answers_copies(self) -> Self:
        """Refuse rewritten texts where nothing asks the teacher what they mean."""
        if self.augmentation is not None and not self.changed_method().needs:
            raise ConfigError(
                f"augmentation={self.augmentation!r}: method {self.method!r} learns from labels "
                "alone, which rewritten texts do not have. Leave it out, or choose a method that "
                "needs the teacher."
            )
        return self


def distill(teacher: Artifact, task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Train a student of `teacher` on a task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher, or the augmentation's words; raised before training
            starts.
        DataError: the file of unlabelled texts is wrong.
    """
    config.check_rules()
    refuse_unwritable(out, teacher)  # said before the teacher answers every text
    for source in filter(None, (config.student, config.augmentation_model, *config.more_teachers)):
        refuse_unwritable(out, artifact_at(str(source)))
    method = config.changed_method()
    given = with_unlabelled(task, config.unlabelled, config.unlabelled_texts)
    teachers = load_teachers(teacher, config.more_teachers, task)
    start, student = _new_student(teachers[0], method, task, config)
    texts = with_augmented(given, teachers, start, config)
    digests = [start.digest, *(each.artifact.digest for each in teachers)]
    identity = ("distill", config.model_dump(mode="json"), texts.fingerprint(), digests)
    models, bf16 = (student, teachers[0].model), computes_in_bf16(config)
    limit_mb = config.teacher_cache_mb
    kept = choose_kept(method, student, teachers, start, len(texts.train), bf16, limit_mb)
    wall, clock = Stopwatch(), Stopwatch()
    with work_directory(out, *identity) as work:
        tokenizer = fitting_tokenizer(start.source, student)
        with wall.running():
            student, reports = train_phases(
                method,
                *models,
                student_examples(kept, teachers, start, tokenizer, texts, config, clock),
                partial(task_objective, *models, bf16, clock),
                config,
                work,
                description=f"distill {out.name}",
                score=lambda each: choice_score(each.student, tokenizer, task, config.max_length),
            )
        training = training_findings(reports, **_added(config, task, given, texts))
        write = partial(
            write_classifier, out, "distill", student, tokenizer, given, config, teacher
        )
        final = partial(final_score, student, tokenizer, task, config.max_length, training.epochs)
        on_main_process(lambda: write(Findings(training=training, scores=final())))
        on_main_process(lambda: write_timing(_timing(wall, clock, reports.values()), out))
    return Artifact.load(out)


def _new_student(
    teacher: Teacher, method: Method, task: Task, config: DistillConfig
) -> tuple[Start, PreTrainedModel]:
    """Return where the student starts, and the student, which its teacher can serve."""
    torch.manual_seed(config.seed)  # what the student does not take from elsewhere is random
    start = find_start(teacher, method, config.student)
    texts_of_each = len(task.text_columns)
    shape = config.shape(method, start.depth, texts_of_each, own_start=not start.is_teacher)
    student = method.student(start.model, shape)
    _refuse_copy(student, teacher.model, config)
    refuse_misfits(method, student, teacher.model)
    return start, student


def _refuse_copy(student: PreTrainedModel, teacher: PreTrainedModel, config: DistillConfig) -> None:
    """Raise ModelError where nothing would be smaller, and nobody has asked for that.

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


def _added(config: DistillConfig, task: Task, given: Task, texts: Task) -> dict[str, int]:
    """Return how many texts were added to the task's own, of each kind that was asked for."""
    added = {}
    if config.unlabelled or config.unlabelled_texts:
        added["unlabelled_texts"] = len(given.train) - len(task.train)
    if config.augmentation:
        added["augmented_texts"] = len(texts.train) - len(given.train)
    return added


def _timing(wall: Stopwatch, teacher: Stopwatch, reports: Iterable[TrainingReport]) -> Timing:
    phases = list(reports)
    return Timing(
        wall_s=wall.seconds,
        training_s=sum(report.seconds for report in phases),
        samples=sum(report.samples for report in phases),
        teacher_s=teacher.seconds,
    )
