"""Tokenised examples: padded to the longest of a batch, and cut to what a model takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedModel,
)

from bertender.models.classifier import input_names, model_inputs
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import Padding, load_tokenizer, padding_of
from bertender.training.examples import TokenDataset
from tests.distill.architectures import save_teacher
from tests.training.runs import toy_examples


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
    examples = TokenDataset(columns, Padding(3))
    assert (len(examples), examples.lengths) == (3, [2, 3, 9])
    batch = examples.collate([examples[0], examples[1]])
    assert batch["input_ids"].tolist() == [[5, 6, 3], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0], [0, 1, 1]]
    assert batch["labels"].tolist() == [0, 1]
    assert batch["teacher_logits"].tolist() == [[0.5, -0.5], [1.0, 2.0]]
    assert batch["teacher_logits"].dtype == torch.float32


def test_padding_is_the_tokenizers(tmp_path: Path) -> None:
    """In front, with a segment of its own, as XLNet's: what `Tokenize` does, column by column."""
    tokenizer = load_tokenizer(save_teacher("xlnet", tmp_path))
    texts = ["apple", "hammer saw drill"]
    examples = TokenDataset(tokenizer(texts).data, padding_of(tokenizer))
    assert examples.padding == Padding(tokenizer.pad_token_id, type_id=3, side="left")
    batch = examples.collate([examples[0], examples[1]])
    expected = Tokenize(tokenizer)([(text,) for text in texts]).arrays
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    assert batch["token_type_ids"][0].tolist()[:2] == [3, 3]


def test_what_is_made_of_examples_pads_as_they_do() -> None:
    columns = {"input_ids": [[5], [6, 7]], "attention_mask": [[1], [1, 1]]}
    examples = TokenDataset(columns, Padding(3, side="left"))
    more = examples.with_columns(labels=[0, 1]).where([True, True])
    assert more.padding == examples.padding
    assert more.collate([more[0], more[1]])["input_ids"].tolist() == [[3, 5], [6, 7]]
    assert more[1]["labels"] == 1


def test_toy_examples_differ_in_length() -> None:
    assert len(set(toy_examples().lengths)) > 5


def test_further_token_columns_are_padded_as_they_say() -> None:
    columns = {
        "input_ids": [[5, 6], [7, 8, 9]],
        "labels": [[-100, 4], [-100, 2, -100]],
        "teacher_logits": [torch.ones(2, 3), torch.ones(3, 3)],
    }
    examples = TokenDataset(columns, Padding(0).with_others(labels=-100, teacher_logits=0))
    batch = examples.collate([examples[0], examples[1]])
    assert batch["labels"].tolist() == [[-100, 4, -100], [-100, 2, -100]]
    assert batch["labels"].dtype == torch.int64
    assert batch["teacher_logits"].shape == (2, 3, 3)
    assert batch["teacher_logits"][0, 2].tolist() == [0.0, 0.0, 0.0]
    kept = examples.where([True, False])
    assert kept.collate([kept[0]])["labels"].tolist() == [[-100, 4]]
    assert kept.padding == examples.padding
