"""The texts that a student learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertender.tasks.bad_rows import SkippedRows, stop, together
from bertender.tasks.task import Split, Task
from bertender.tasks.texts import read_texts
from bertender.tasks.unlabelled import unlabelled_texts
from distill.augmentation.augment import AugmentedConfig, augmented
from distill.distillation.start import Start
from distill.losses import NO_LABEL
from distill.teachers.teacher import Teacher

__all__ = ["with_augmented", "with_unlabelled"]


def with_unlabelled(task: Task, path: Path | None, most: int = 0) -> Task:
    """Return the task with texts without labels added to its training examples.

    Bad rows are left out and listed where the task's own are. Texts that are set apart to choose
    by are left out: nothing learns from them, labelled or not.

    Args:
        task: what is learned.
        path: a file of such texts, if there is one.
        most: unlabelled texts, at most, of those that come with the task.

    Raises:
        DataError: the file is wrong.
    """
    if path is None and not most:
        return task
    skipped, apart = SkippedRows(), set(task.selection.examples)
    bad_row = skipped if task.skips_bad_rows else stop
    read = () if path is None else read_texts(path, task.text_columns, bad_row)
    brought = [text for text in unlabelled_texts(task) if text not in apart] if most else []
    texts = [*(text for text in read if text not in apart), *brought[:most]]
    labels = (*task.train.label_ids, *(NO_LABEL for _ in texts))
    train = Split((*task.train.examples, *texts), labels)
    return replace(task, train=train, left_out=together(task.left_out, skipped.report()))


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
