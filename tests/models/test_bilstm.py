"""The BiLSTM: what it reads of a text, and nothing else, against PyTorch's own packed LSTM."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from bertender.models.table_models import BiLstmForSequenceClassification
from tests.models.token_rows import PAIRS, TEXTS, TOLERANCE, logits, padded
from tests.toy_models import tiny_classifier


def bilstm(**changes: Any) -> BiLstmForSequenceClassification:
    model = tiny_classifier("bertender-bilstm", **changes)
    assert isinstance(model, BiLstmForSequenceClassification)
    return model


def packed_states(model: BiLstmForSequenceClassification, rows: list[list[int]]) -> torch.Tensor:
    """Last states (rows, 2 hidden) by one bidirectional LSTM over packed sequences."""
    shape = model.config
    both = nn.LSTM(shape.embedding_size, shape.hidden_size, bidirectional=True)
    encoder = model.encoder
    onward, backward = encoder.left_to_right.state_dict(), encoder.right_to_left.state_dict()
    reverse = {f"{name}_reverse": weight for name, weight in backward.items()}
    both.load_state_dict({**onward, **reverse})
    table = model.get_input_embeddings().weight
    with torch.inference_mode():
        packed = pack_sequence([table[torch.tensor(row)] for row in rows], enforce_sorted=False)
        _, (last, _) = both(packed)  # (2, rows, hidden)
    return torch.cat([last[0], last[1]], dim=-1)


def head(model: BiLstmForSequenceClassification, joined: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model.classifier(torch.relu(model.dense(joined)))


def test_the_answer_is_that_of_a_packed_bidirectional_lstm() -> None:
    model = bilstm(labels=3)
    expected = head(model, packed_states(model, TEXTS))
    torch.testing.assert_close(logits(model, **padded(TEXTS)), expected, **TOLERANCE)


@pytest.mark.parametrize("layout", PAIRS)
def test_the_texts_of_a_pair_are_read_apart_by_the_same_weights(layout: str) -> None:
    model = bilstm(texts=2)
    tokens, *texts = PAIRS[layout]
    first, second = packed_states(model, texts).split(1)
    joined = torch.cat([first, second, first * second, (first - second).abs()], dim=-1)
    found = logits(model, **padded([tokens], longest=30))
    torch.testing.assert_close(found, head(model, joined), **TOLERANCE)


def test_without_a_mask_every_token_counts() -> None:
    model, batch = bilstm(), padded(TEXTS[:1])
    assert torch.equal(logits(model, input_ids=batch["input_ids"]), logits(model, **batch))
    longer = padded(TEXTS[:1], 30)["input_ids"]
    assert not torch.allclose(logits(model, input_ids=longer), logits(model, **batch))


def test_every_weight_learns() -> None:
    model = bilstm(texts=2).train()
    model(**padded([tokens for tokens, *_ in PAIRS.values()])).logits.square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient is not None and gradient.any() for gradient in gradients.values())
