"""Checkpoints of LSTMs whose weights are in one block of memory, as cuDNN has them on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_model

from bertender.models.table_models import BiLstmConfig, BiLstmForSequenceClassification
from bertender.training.checkpoint import last_checkpoint
from bertender.training.loop import train
from distill.finetuning.finetune import label_objective
from tests.training.runs import CONFIG, tiny_tokenizer, toy_examples


def in_one_block() -> BiLstmForSequenceClassification:
    torch.manual_seed(2)
    config = BiLstmConfig(8, 6, 5, vocab_size=len(tiny_tokenizer()), num_labels=2)
    model = BiLstmForSequenceClassification(config)
    for layer in (model.encoder.left_to_right, model.encoder.right_to_left):
        weights = [*layer.parameters()]
        block = torch.cat([weight.detach().flatten() for weight in weights])
        sizes = [weight.numel() for weight in weights]
        for weight, part in zip(weights, block.split(sizes), strict=True):
            weight.data = part.view_as(weight)
    return model


def test_they_are_written_and_read_again(tmp_path: Path) -> None:
    model, examples = in_one_block(), toy_examples()
    with pytest.raises(RuntimeError, match="entire storage"):
        save_model(model, str(tmp_path / "refused.safetensors"))
    first = train(model, examples, label_objective, CONFIG, tmp_path)
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None
    stored = load_file(checkpoint / "model.safetensors")
    trained = model.state_dict()
    assert stored.keys() == trained.keys()
    assert all(torch.equal(stored[name], trained[name]) for name in stored)
    again = in_one_block()
    assert train(again, examples, label_objective, CONFIG, tmp_path) == first
    assert all(torch.equal(again.state_dict()[name], trained[name]) for name in trained)


def test_the_model_is_written(tmp_path: Path) -> None:
    model = in_one_block()
    model.save_pretrained(tmp_path)
    opened = BiLstmForSequenceClassification.from_pretrained(tmp_path)
    for mine, its in zip(model.parameters(), opened.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=0)
