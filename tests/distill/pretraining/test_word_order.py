"""Shuffled trigrams: disjoint, of free tokens alone, and their targets restore the text."""

from __future__ import annotations

import pytest
import torch

from bertender.metrics.metric import NO_LABEL
from distill.pretraining import objectives as word_order
from tests.distill.pretraining.batches import batch_of, objective_of


def shuffled(
    ids: torch.Tensor, free: torch.Tensor, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor] = objective_of("mlm+word-order").shuffled(
        ids, free, torch.Generator().manual_seed(seed)
    )
    return found


@pytest.mark.parametrize("seed", range(3))
def test_targets_restore_the_text(seed: int) -> None:
    ids = batch_of(200)["input_ids"]
    mixed, targets = shuffled(ids, ids > 4, seed)
    asked = targets != NO_LABEL
    assert not torch.equal(mixed, ids)
    assert torch.equal(torch.where(asked, targets, mixed), ids)
    assert torch.equal(mixed[~asked], ids[~asked])


def test_one_trigram_in_twenty_is_shuffled() -> None:
    ids = torch.arange(5, 5 + 3000).repeat(40, 1)
    _, targets = shuffled(ids, torch.ones_like(ids, dtype=torch.bool))
    share = float((targets != NO_LABEL).float().mean())
    assert abs(share - 0.05) < 4 * (0.05 * 0.95 / 40000) ** 0.5


def test_trigrams_keep_their_three_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_order, "SHUFFLED_SHARE", 1.0)
    ids = torch.arange(100, 112)[None]
    for seed in range(20):
        mixed, targets = shuffled(ids, torch.ones_like(ids, dtype=torch.bool), seed)
        places = (targets[0] != NO_LABEL).nonzero()[:, 0].tolist()
        assert places == list(range(places[0], places[0] + len(places))) and places[0] < 3
        for start in places[::3]:
            trigram = ids[0, start : start + 3].tolist()
            assert sorted(mixed[0, start : start + 3].tolist()) == trigram


def test_trigrams_with_a_token_that_is_not_free_stay() -> None:
    ids = torch.arange(5, 5 + 300).repeat(200, 1)
    free = torch.ones_like(ids, dtype=torch.bool)
    free[:, ::4] = False
    mixed, targets = shuffled(ids, free)
    assert (targets[:, ::4] == NO_LABEL).all() and torch.equal(mixed[:, ::4], ids[:, ::4])
    assert (targets != NO_LABEL).any()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_rows_too_short_for_a_trigram_stay(length: int) -> None:
    ids = torch.arange(5, 5 + length)[None]
    free = torch.ones_like(ids, dtype=torch.bool)
    free[:, 0] = False
    mixed, targets = shuffled(ids, free)
    assert torch.equal(mixed, ids) or length == 4
    assert targets.shape == ids.shape
