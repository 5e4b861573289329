"""A trained teacher, shared by the tests of distillation."""

from __future__ import annotations

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from distill.teacher import FinetuneConfig, finetune
from tests.conftest import tiny_bert
from tests.distill.toys import tiny_tokenizer


@pytest.fixture(scope="session")
def trained_teacher(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Artifact:
    """The tiny BERT, fine-tuned on the toy task until it knows it."""
    tokenizer = tiny_tokenizer()
    config = FinetuneConfig(epochs=6, batch_size=16, learning_rate=3e-3, precision="fp32")
    model = tiny_bert(len(tokenizer), task.labels)
    return finetune(model, tokenizer, task, config, tmp_path_factory.mktemp("distill") / "teacher")
