"""Tokenised examples: padded to the longest of a batch, and cut to what a model takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedModel,
)

from bertender.core.examples import TokenDataset, input_names, model_inputs
from tests.core.runs import toy_examples


def bert() -> PreTrainedModel:
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return BertForSequenceClassification(BertConfig(vocab_size=9, intermediate_size=8, **shape))


def distilbert() -> PreTrainedModel:
    config = DistilBertConfig(vocab_size=9, dim=8, n_layers=1, n_heads=1, hidden_dim=8)
    return DistilBertForSequenceClassification(config)


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (bert, ["input_ids", "attention_mask", "token_type_ids"]),
        (distilbert, ["input_ids", "attention_mask"]),
    ],
)
def test_inputs_that_a_model_takes(build: Callable[[], PreTrainedModel], names: list[str]) -> None:
    model = build()
    assert input_names(model) == names
    assert input_names(torch.nn.DataParallel(model)) == names
    columns = ("labels", "token_type_ids", "attention_mask", "input_ids")
    batch = {name: torch.ones(2, 3, dtype=torch.long) for name in columns}
    assert list(model_inputs(model, batch)) == names
    assert model(**model_inputs(model, batch)).logits.shape == (2, 2)
    del batch["attention_mask"]
    assert "attention_mask" not in model_inputs(model, batch)


def test_collated_to_the_longest_of_the_batch() -> None:
    columns = {
        "input_ids": [[5, 6], [7, 8, 9], [4] * 9],
        "attention_mask": [[1, 1], [1, 1, 1], [1] * 9],
        "token_type_ids": [[0, 1], [0, 1, 1], [1] * 9],
        "labels": [0, 1, 0],
        "teacher_logits": [[0.5, -0.5], [1.0, 2.0], [0.0, 0.0]],
    }
    examples = TokenDataset(columns, pad_token_id=3)
    assert (len(examples), examples.lengths) == (3, [2, 3, 9])
    batch = examples.collate([examples[0], examples[1]])
    assert batch["input_ids"].tolist() == [[5, 6, 3], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0], [0, 1, 1]]
    assert batch["labels"].tolist() == [0, 1]
    assert batch["teacher_logits"].tolist() == [[0.5, -0.5], [1.0, 2.0]]
    assert batch["teacher_logits"].dtype == torch.float32


def test_toy_examples_differ_in_length() -> None:
    assert len(set(toy_examples().lengths)) > 5


def test_further_token_columns_are_padded_as_they_say() -> None:
    columns = {
        "input_ids": [[5, 6], [7, 8, 9]],
        "labels": [[-100, 4], [-100, 2, -100]],
        "teacher_logits": [torch.ones(2, 3), torch.ones(3, 3)],
    }
    examples = TokenDataset(columns, 0, {"labels": -100, "teacher_logits": 0})
    batch = examples.collate([examples[0], examples[1]])
    assert batch["labels"].tolist() == [[-100, 4, -100], [-100, 2, -100]]
    assert batch["labels"].dtype == torch.int64
    assert batch["teacher_logits"].shape == (2, 3, 3)
    assert batch["teacher_logits"][0, 2].tolist() == [0.0, 0.0, 0.0]
    kept = examples.where([True, False])
    assert kept.collate([kept[0]])["labels"].tolist() == [[-100, 4]]
    assert kept.token_padding == examples.token_padding
