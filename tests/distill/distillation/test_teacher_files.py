"""`distill --teacher FILE`: a student of a file is that of the model that wrote it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.models.classifier import load_torch_classifier
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer
from tests.front import succeed, write_csv
from tests.listening import listed_steps
from tests.toy_models import save_encoder

QUICK = ("--epochs", "2", "--batch-size", "8", "--learning-rate", "2e-3", "--precision", "fp32")
LENGTH = ("--max-length", "32", "--vocab-size", "all")


def logits_of(teacher: Artifact, split: Split) -> torch.Tensor:
    model, tokenizer = load_torch_classifier(teacher).eval(), load_tokenizer(teacher.path)
    tokens = tokenizer([text for (text,) in split.examples], padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = model(**tokens).logits
    return logits


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return save_encoder("bert", tmp_path / "encoder", num_hidden_layers=1)


@pytest.mark.parametrize(
    "method",
    [("pd",), ("distilbert", "--weights", "cosine=0", "--temperature", "3", "--layers", "1")],
    ids=["pd", "distilbert"],
)
def test_a_file_teaches_as_the_model_that_wrote_it(
    method: Sequence[str],
    trained_teacher: Artifact,
    task: Task,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTENDER_CACHE", str(tmp_path / "cache"))
    write_csv(tmp_path / "dev.csv", task.dev, task.labels)
    chances = logits_of(trained_teacher, task.train).double().softmax(-1).tolist()
    rows = [
        {"text": text, "probabilities": dict(zip(task.labels, row, strict=True))}
        for (text,), row in zip(task.train.examples, chances, strict=True)
    ]
    file = write_lines(tmp_path / "labels.jsonl", rows)
    (tmp_path / "texts.txt").write_text("\n".join(row["text"] for row in rows))
    shared = ("--dev", tmp_path / "dev.csv", "--student", encoder, "--method", *method)
    losses = []
    for teacher in (
        (trained_teacher.path, "--unlabelled", tmp_path / "texts.txt"),
        (file,),
    ):
        out = tmp_path / f"student-{len(losses)}"
        with listed_steps() as steps:
            succeed("distill", "--teacher", *teacher, *shared, *QUICK, *LENGTH, "--out", out)
        losses.append([{name: float(loss) for name, loss in each.losses.items()} for each in steps])
    assert len(losses[0]) == len(losses[1]) > 10
    for ours, theirs in zip(*losses, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert losses[0][0] != losses[0][-1]
