"""Masking: how much, of what kind, never where it must not, and the same when repeated."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bertender.metrics.metric import NO_LABEL
from distill.pretraining.objectives import MaskedLanguageModel
from tests.toy_models import VOCABULARY
from tests.toys import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SHARE = 0.15


def objective(seed: int = 0, share: float = SHARE) -> MaskedLanguageModel:
    return MaskedLanguageModel(TOKENIZER, share, seed)


def token_ids(rows: int = 500, length: int = 64) -> torch.Tensor:
    """Random words between [CLS] and [SEP], padded in every second row."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=generator)
    ids[:, 0], ids[:, -1] = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id
    ids[::2, 40:] = TOKENIZER.pad_token_id
    return ids


class Recorder(torch.nn.Module):
    """A model that answers nothing in particular and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[torch.Tensor] = []
        self.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        self.asked.append(input_ids)
        return SimpleNamespace(logits=self.bias.expand(*input_ids.shape, -1))


def asked(seed: int, step: int, ids: torch.Tensor) -> torch.Tensor:
    recorder = Recorder()
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    objective(seed)(recorder, batch, step)
    return recorder.asked[0]


def near(found: torch.Tensor, share: float, count: int) -> bool:
    """Within four standard errors of a share of `count` draws."""
    return abs(float(found.float().mean()) - share) < 4 * (share * (1 - share) / count) ** 0.5


def test_shares_are_those_of_the_paper() -> None:
    ids = token_ids()
    masked, targets = objective().masking(ids, torch.Generator().manual_seed(0))
    ordinary = ids > 4
    chosen = targets != NO_LABEL
    assert near(chosen[ordinary], SHARE, int(ordinary.sum()))
    count = int(chosen.sum())
    assert near((masked == TOKENIZER.mask_token_id)[chosen], 0.8, count)
    changed = (masked != ids) & (masked != TOKENIZER.mask_token_id)
    # a random word is the old one, or [MASK], once in so many words
    assert near(changed[chosen], 0.1 * (1 - 2 / VOCABULARY), count)
    assert near((masked == ids)[chosen], 0.1 + 0.1 / VOCABULARY, count)


def test_random_words_come_from_the_whole_vocabulary() -> None:
    ids = token_ids(2000)
    masked, targets = objective().masking(ids, torch.Generator().manual_seed(0))
    words = masked[(targets != NO_LABEL) & (masked != ids) & (masked != TOKENIZER.mask_token_id)]
    assert len(words.unique()) > 0.95 * VOCABULARY


def test_special_tokens_and_padding_are_never_chosen_or_changed() -> None:
    ids = token_ids()
    masked, targets = objective(share=0.9).masking(ids, torch.Generator().manual_seed(0))
    special = ids <= 4
    assert (targets[special] == NO_LABEL).all()
    assert torch.equal(masked[special], ids[special])


def test_targets_are_the_original_tokens_and_the_rest_is_untouched() -> None:
    ids = token_ids()
    before = ids.clone()
    masked, targets = objective().masking(ids, torch.Generator().manual_seed(0))
    chosen = targets != NO_LABEL
    assert torch.equal(ids, before)
    assert torch.equal(targets[chosen], ids[chosen])
    assert torch.equal(masked[~chosen], ids[~chosen])


@pytest.mark.parametrize("seed", range(5))
def test_there_is_always_a_target(seed: int) -> None:
    ids = torch.tensor([[TOKENIZER.cls_token_id, 9, TOKENIZER.sep_token_id]])
    _, targets = objective(share=1e-6).masking(ids, torch.Generator().manual_seed(seed))
    assert targets.tolist() == [[NO_LABEL, 9, NO_LABEL]]


def test_a_batch_of_special_tokens_alone_has_loss_zero() -> None:
    ids = torch.tensor([[TOKENIZER.cls_token_id, TOKENIZER.sep_token_id]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert float(objective()(Recorder(), batch, 0)["mlm"].detach()) == 0.0


def test_the_loss_is_the_mean_over_the_chosen_tokens() -> None:
    """A model that knows nothing loses log(vocabulary) on each of them."""
    batch = {"input_ids": token_ids(), "attention_mask": torch.ones(500, 64)}
    loss = objective()(Recorder(), batch, 0)["mlm"].detach()
    assert float(loss) == pytest.approx(float(torch.log(torch.tensor(float(VOCABULARY)))), rel=1e-5)


def test_masks_are_drawn_from_seed_and_step() -> None:
    ids = token_ids(50)
    reference = asked(0, 7, ids)
    assert torch.equal(asked(0, 7, ids), reference)
    assert not torch.equal(asked(0, 8, ids), reference)
    assert not torch.equal(asked(1, 7, ids), reference)


def test_masks_do_not_move_the_global_random_state() -> None:
    before = torch.get_rng_state()
    asked(0, 0, token_ids(10))
    assert torch.equal(torch.get_rng_state(), before)
