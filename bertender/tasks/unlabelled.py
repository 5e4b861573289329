"""UNLABELLED: texts without labels that come with a task by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from bertender.tasks.docs_sections import load_further
from bertender.tasks.task import Task
from bertender.text.example import Example

__all__ = ["UNLABELLED", "unlabelled_texts"]

logger = logging.getLogger(__name__)

UNLABELLED: Mapping[str, Callable[[], tuple[Example, ...]]] = {"docs": load_further}
"""The reader of a task's unlabelled texts, by the task's name in TASKS."""


def unlabelled_texts(task: Task) -> tuple[Example, ...]:
    """Return the unlabelled texts that come with a task; most have none, and files never do."""
    read = None if task.source.get("train") else UNLABELLED.get(task.source.get("task", ""))
    texts = read() if read else ()
    if not texts:
        logger.warning(
            "task %s comes with no unlabelled texts: unlabelled_texts adds none. Give a file of "
            "some by --unlabelled",
            task.name,
        )
    return texts
