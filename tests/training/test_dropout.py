"""Training without dropout: nothing is dropped, and all else that training does goes on."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from bertender.training.steps import switch_off_dropout
from tests.toy_models import SHAPES, tiny_classifier


class Keeps(nn.Module):
    """Something that training mode decides, as whether ranges are watched."""

    differs_in_training: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout()


def test_what_differs_in_training_stays_in_it() -> None:
    model = nn.Sequential(Keeps(), nn.LSTM(2, 2), nn.Dropout(), nn.Linear(2, 2)).train()
    switch_off_dropout(model)
    assert [part.training for part in model] == [True, True, False, False]
    assert not model[0].inner.training


@pytest.mark.parametrize("family", SHAPES)
def test_no_family_drops_anything(family: str) -> None:
    model = tiny_classifier(family).train()
    tokens = {
        "input_ids": torch.arange(5, 17).view(2, 6),
        "attention_mask": torch.ones(2, 6, dtype=torch.long),
    }
    switch_off_dropout(model)
    torch.testing.assert_close(model(**tokens).logits, model(**tokens).logits, rtol=0, atol=0)
