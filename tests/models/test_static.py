"""The static model: a weighted mean of the vectors of a text's own tokens, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bertender.models.table_models import NO_WEIGHT, StaticForSequenceClassification
from tests.models.token_rows import PAIRS, TEXTS, TOLERANCE, logits, padded
from tests.toy_models import tiny_classifier

SPECIAL = [0, 2, 3]


def static(**changes: Any) -> StaticForSequenceClassification:
    model = tiny_classifier("bertender-static", **changes)
    assert isinstance(model, StaticForSequenceClassification)
    with torch.no_grad():
        model.encoder.word_weights[SPECIAL] = NO_WEIGHT
    return model


def mean_of(model: StaticForSequenceClassification, row: list[int]) -> torch.Tensor:
    """The mean (hidden,) of a row's tokens without special ones, one token after another."""
    encoder = model.encoder
    total, vector = torch.zeros(()), torch.zeros(model.config.hidden_size)
    for token in (token for token in row if token not in SPECIAL):
        weight = 1 / (1 + torch.exp(-encoder.word_weights[token]))
        total, vector = total + weight, vector + weight * encoder.word_embeddings.weight[token]
    return vector / total if total else vector


def head(model: StaticForSequenceClassification, features: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model.classifier(model.activation(model.dense(features)))


@pytest.mark.parametrize("hidden", [0, 24])
def test_a_text_is_the_weighted_mean_of_its_tokens(hidden: int) -> None:
    model = static(labels=3, feed_forward_size=hidden)
    means = torch.stack([mean_of(model, row) for row in TEXTS])
    torch.testing.assert_close(logits(model, **padded(TEXTS)), head(model, means), **TOLERANCE)


@pytest.mark.parametrize("layout", PAIRS)
def test_the_texts_of_a_pair_are_read_apart_by_the_same_table(layout: str) -> None:
    model = static(texts=2)
    tokens, *texts = PAIRS[layout]
    u, v = (mean_of(model, row)[None] for row in texts)
    joined = torch.cat([u, v, u * v, (u - v).abs()], dim=-1)
    found = logits(model, **padded([tokens], longest=30))
    torch.testing.assert_close(found, head(model, joined), **TOLERANCE)


def test_the_order_of_tokens_changes_nothing() -> None:
    model, (row, *_) = static(), TEXTS
    torch.testing.assert_close(
        logits(model, **padded([row])), logits(model, **padded([row[::-1]])), **TOLERANCE
    )


def test_without_a_mask_every_token_counts() -> None:
    model, batch = static(), padded(TEXTS[:1])
    assert torch.equal(logits(model, input_ids=batch["input_ids"]), logits(model, **batch))
    batch["attention_mask"][0, 1] = 0
    assert not torch.allclose(logits(model, input_ids=batch["input_ids"]), logits(model, **batch))


def test_every_weight_learns_but_those_of_special_tokens() -> None:
    model = static(texts=2, feed_forward_size=24).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(**padded([tokens for tokens, *_ in PAIRS.values()])).logits.square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient is not None and gradient.any() for gradient in gradients.values())
    optimizer.step()
    assert not model.encoder.word_weights[SPECIAL].sigmoid().any()
