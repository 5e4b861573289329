"""What classifiers over a table of word vectors have in common."""

from __future__ import annotations

import pytest
import torch

from bertender.core.errors import ModelError
from bertender.models.own_models import TABLE_MODELS
from tests.models.token_rows import PAIRS, TEXTS, TOLERANCE, logits, padded
from tests.toy_models import tiny_classifier


@pytest.mark.parametrize("longest", [0, 40])
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("model_type", TABLE_MODELS)
def test_neither_padding_nor_neighbours_change_the_logits(
    model_type: str, texts: int, longest: int
) -> None:
    model = tiny_classifier(model_type, texts=texts)
    rows = TEXTS if texts == 1 else [tokens for tokens, *_ in PAIRS.values()]
    batch = padded(rows, longest)
    alone = torch.cat([logits(model, **padded([row])) for row in rows])
    torch.testing.assert_close(logits(model, **batch), alone, **TOLERANCE)
    noise = torch.where(batch["attention_mask"] > 0, batch["input_ids"], 57)
    other = logits(model, input_ids=noise, attention_mask=batch["attention_mask"])
    torch.testing.assert_close(other, alone, **TOLERANCE)


@pytest.mark.parametrize("model_type", TABLE_MODELS)
def test_there_are_no_hidden_states(model_type: str) -> None:
    with pytest.raises(ModelError, match="no hidden states of layers"):
        tiny_classifier(model_type)(**padded(TEXTS), output_hidden_states=True)
