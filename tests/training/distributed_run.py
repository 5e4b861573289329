"""A teacher and its student on the toy task, for `accelerate launch`: OUT, batch size a process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from bertender.core.artifact import Artifact
from bertender.core.machine import is_main_process
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.finetuning import finetune as finetuning
from tests.listening import listed_steps
from tests.toys import tiny_bert, toy_task
from tests.training.runs import tiny_tokenizer


def run(out: Path, batch_size: int) -> Artifact:
    """Fine-tune without dropout, then distil; each process leaves its losses and writes."""
    torch.set_num_threads(1)
    task, tokenizer = toy_task(), tiny_tokenizer()
    shape = tiny_bert(len(tokenizer), task.labels).config
    shape.update({"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    torch.manual_seed(3)
    model = BertForSequenceClassification(shape)
    config = finetuning.FinetuneConfig(
        epochs=2, batch_size=batch_size, learning_rate=1e-3, precision="fp32", checkpoint_steps=5
    )
    writes: list[bool] = []
    write = finetuning.write_trained

    def counted(*given: Any, **made: Any) -> None:
        writes.append(is_main_process())
        write(*given, **made)

    with pytest.MonkeyPatch.context() as patch, listed_steps() as steps:
        patch.setattr(finetuning, "write_trained", counted)
        artifact = finetuning.finetune(model, tokenizer, task, config, out)
    with listed_steps() as taught:
        student = distill(artifact, task, student_config(batch_size), student_path(out))
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    record = {
        "losses": [float(step.losses["hard"]) for step in steps],
        "writes": writes,
        "digest": artifact.digest,
        "student": student.digest,
        "first_loss_of_student": float(taught[0].losses["hidden"]),
    }
    (out.parent / f"{out.name}-{rank}.json").write_text(json.dumps(record))
    return artifact


def student_path(out: Path) -> Path:
    """Where the student of the run at `out` is."""
    return out.parent / f"student-of-{out.name}"


def student_config(batch_size: int) -> DistillConfig:
    """A student of two phases, one with projections that only training needs."""
    return DistillConfig(
        method="tinybert",
        layers=2,
        vocab_size="all",  # its embeddings are compared with the teacher's
        epochs=1,
        earlier_epochs=1,
        batch_size=batch_size,
        earlier_learning_rate=1e-3,
        learning_rate=1e-3,
        precision="fp32",
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
