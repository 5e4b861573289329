"""Texts without labels that come with a task by name: the field `unlabelled` of its row."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bertender.core.environment import data_directory
from bertender.tasks.documentation import draw
from bertender.tasks.registry import TASKS
from bertender.tasks.task import Task
from bertender.tasks.texts import read_texts
from bertender.text.example import Example

__all__ = ["texts_of_data_file", "unlabelled_texts"]

logger = logging.getLogger(__name__)


def unlabelled_texts(task: Task) -> tuple[Example, ...]:
    """Return the unlabelled texts that come with a task; most have none, and files never do."""
    row = None if task.source.get("train") else TASKS.get(task.source.get("task", ""))
    texts = row.unlabelled() if row and row.unlabelled else ()
    if not texts:
        logger.warning(
            "task %s comes with no unlabelled texts: unlabelled_texts adds none. Give a file of "
            "some by --unlabelled",
            task.name,
        )
    return texts


def texts_of_data_file(file: str, text_columns: Sequence[str]) -> tuple[Example, ...]:
    """Return the distinct texts of a file in the folder of local data sets; none where it is not.

    Their order follows from hashes of them, so that the first are not of one source, and are nearly
    the same ones in a file with some more.

    Raises:
        DataError: the file is wrong.
    """
    root = data_directory()
    if root is None or not (root / file).is_file():
        return ()
    texts = dict.fromkeys(read_texts(root / file, text_columns))
    return tuple(sorted(texts, key=lambda text: draw(*text)))
