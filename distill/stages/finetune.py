"""FINETUNE: a teacher, of one task or of several at once.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.pipeline.named_files import NamedFile, TaskData
from bertender.pipeline.products import TORCH_MODEL, Product
from bertender.pipeline.stage import Inputs, Stage
from bertender.tasks.task import Task
from distill.finetuning.config import (
    MultiTaskConfig,
    check_distinct,
    check_word_labels,
    sibling_paths,
)
from distill.stages.encoder_folder import Encoder, expected_encoder

__all__ = ["FINETUNE"]


def _finetune(inputs: Inputs, config: MultiTaskConfig, out: Path) -> Artifact:
    from distill.finetuning.multitask import finetune_tasks_by_name

    return finetune_tasks_by_name(inputs.task, config, out)


def _files(config: MultiTaskConfig) -> Iterator[NamedFile]:
    yield Encoder("teacher", config.teacher)
    yield from map(TaskData, config.more_tasks)


def _check(config: MultiTaskConfig, task: Task) -> None:
    check_distinct((task.name, *config.more_tasks))
    check_word_labels(task, config)
    for each in config.more_tasks:
        TaskData(each).digest()  # which loads them


FINETUNE = Stage(
    name="finetune",
    config=MultiTaskConfig,
    function=_finetune,
    sources=(0, 1),
    wants=lambda config, position: TORCH_MODEL,
    makes=lambda config: Product("finetune", "torch"),
    model=lambda config, earlier: expected_encoder(config.teacher, earlier),
    fills={0: "teacher"},
    files=_files,
    check=_check,
    also_writes=sibling_paths,
)
