"""A trained teacher, shared by the tests of distillation."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune
from tests.conftest import Once
from tests.toys import tiny_bert, tiny_tokenizer


@pytest.fixture(scope="session")
def trained_teacher(once: Once, task: Task) -> Artifact:
    """The tiny BERT, fine-tuned on the toy task until it knows it; `trained` has another start."""

    def fill(folder: Path) -> None:
        tokenizer = tiny_tokenizer()
        config = FinetuneConfig(epochs=6, batch_size=16, learning_rate=3e-3, precision="fp32")
        model = tiny_bert(len(tokenizer), task.labels)
        finetune(model, tokenizer, task, config, folder / "teacher")

    return Artifact.load(once("trained-tiny-bert", fill) / "teacher")
