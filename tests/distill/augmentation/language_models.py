"""Language models that propose words, and teachers made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.findings import Findings
from bertender.tasks.task import Task
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from tests.toy_models import BERT_SHAPE, VOCABULARY
from tests.toys import new_toy, tiny_tokenizer

ONE_EPOCH = {"epochs": 1, "batch_size": 32, "precision": "fp32"}


def language_model_artifact(out: Path) -> Artifact:
    """As `pretrain` writes it."""
    task = TaskRecord(
        name="docs",
        problem_type="masked_language_model",
        labels=(),
        text_columns=("text",),
        metric="perplexity",
    )
    with new_toy(out, kind="torch", family="bert", task=task, stage="pretrain") as draft:
        save_language_model(draft.directory)
        draft.findings = Findings(parameters=1)
    return Artifact.load(out)


def teacher_from(encoder: Path, task: Task, out: Path) -> Artifact:
    few = replace(task, train=task.train.first(8), dev=task.dev.first(4))
    return finetune_by_name(few, FinetuneConfig(teacher=str(encoder), **ONE_EPOCH), out)


def save_language_model(folder: Path, seed: int = 0) -> Path:
    """A plain folder with an untrained masked language model."""
    torch.manual_seed(seed)
    BertForMaskedLM(BertConfig(**BERT_SHAPE, vocab_size=VOCABULARY)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
