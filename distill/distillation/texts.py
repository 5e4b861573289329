"""The rewritten texts that a student learns from."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.tasks.task import Task
from distill.augmentation.augment import augmented
from distill.augmentation.config import AugmentedConfig
from distill.distillation.start import Start
from distill.teachers.teacher import Teacher

__all__ = ["with_augmented"]


def with_augmented(
    task: Task, teachers: Sequence[Teacher], start: Start, config: AugmentedConfig
) -> Task:
    """Return the task with the rewritten texts that the config asks for.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: their words cannot be had, or one of
            those who read them would read something else.
    """
    first, *_ = teachers
    readers = (start.source, *(str(teacher.artifact.path) for teacher in teachers))
    return augmented(task, first.artifact, first.model, readers, config)
