"""A toy task of each kind of problem, and of several heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact
from bertender.problems import PROBLEMS
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.tasks.task import Task
from bertender.text.batch import Example
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from tests.toy_heads import JOINT, RATED, TWO_OF_TEXTS
from tests.toy_models import save_encoder
from tests.toy_tagging import TASK as TAGGING
from tests.toys import (
    answer_task,
    choice_task,
    number_task,
    pair_task,
    ranking_task,
    set_task,
    similarity_task,
    toy_task,
)

TOYS = (
    *(toy_task(), set_task(), number_task(), TAGGING, similarity_task(), answer_task()),
    *(choice_task(), ranking_task(), JOINT, TWO_OF_TEXTS, RATED),
)
TASKS = {task.problem_type: task for task in TOYS}
NAMED = {**TASKS, "pairs": pair_task()}
"""The tasks that `write_teacher` knows."""
EPOCHS = {MULTIPLE_CHOICE.name: 6, QUESTION_ANSWERING.name: 6, "pairs": 9}
"""Of the teachers that learn more slowly than others."""
ALL = (*PROBLEMS, *(task.problem_type for task in TOYS if task.problem.heads))


def pace(task: Task) -> dict[str, Any]:
    """How the models of a toy task learn: in as few steps as its texts allow."""
    pace = {"batch_size": 8, "learning_rate": 3e-3, "precision": "fp32"}
    many = len(task.train) > 200 and not task.problem.heads
    return {**pace, "batch_size": 16, "learning_rate": 4e-3} if many else pace


def write_teacher(name: str, folder: Path) -> Artifact:
    """Train a teacher of a toy task in a folder, from a tiny BERT that lies there too."""
    task, encoder = NAMED[name], save_encoder("bert", folder / "encoder")
    epochs = EPOCHS.get(name, 4 if len(task.train) > 200 else 6)
    config = FinetuneConfig(teacher=str(encoder), epochs=epochs, **pace(task))
    return finetune_by_name(task, config, folder / "teacher")


def write_asked(task: Task, examples: Sequence[Example], folder: Path) -> Path:
    """Write a file of examples that an endpoint is asked about, with the task's columns."""
    if task.problem.labels_words:
        path = folder / "asked.conll"
        path.write_text("\n\n".join(map("\n".join, examples)))
        return path
    path, columns = folder / "asked.jsonl", task.problem.asked_columns(task.text_columns)
    rows: list[Example | tuple[str, list[str]]] = [*examples]
    if task.problem.takes_list:
        rows = [(first, others) for first, *others in examples]
    path.write_text("\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows))
    return path
