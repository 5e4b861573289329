"""Every row of OBJECTIVES: what it asks of a batch, what it leaves alone, what it gives back."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, PreTrainedModel

from bertender.training.examples import TensorBatch
from distill.pretraining.config import OBJECTIVES
from distill.pretraining.masking import word_marks
from distill.pretraining.pretrain import TRAINING_MODULES
from distill.pretraining.segment_pairs import (
    NEXT_SENTENCE,
    SENTENCE_ORDER,
    SENTENCE_STRUCTURE,
)
from tests.distill.pretraining.batches import (
    TOKENIZER,
    WHOLE_WORDS,
    batch_of,
    objective_of,
    pretraining_module_of,
)
from tests.toy_models import BERT_SHAPE, VOCABULARY

MARKS = word_marks(TOKENIZER)


def ids_read(name: str, batch: TensorBatch, seed: int = 0, step: int = 0) -> list[torch.Tensor]:
    """What the embeddings are asked for, the generator's of ELECTRA among it."""
    pretraining_module, read = pretraining_module_of(name).eval(), []
    table = pretraining_module.model.get_input_embeddings()
    table.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].clone()))
    objective_of(name, seed)(pretraining_module, batch, step)
    return read


def chosen_by(name: str, batch: TensorBatch, share: float = 0.15) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    chosen: torch.Tensor = objective_of(name, share=share).masking.chosen(
        batch["input_ids"], generator
    )
    return chosen


@pytest.mark.parametrize("name", OBJECTIVES)
def test_special_tokens_and_padding_are_read_as_they_are(name: str) -> None:
    batch = batch_of()
    special = batch["input_ids"] < 5
    for read in ids_read(name, batch):
        assert torch.equal(read[special], batch["input_ids"][special])
        assert not torch.equal(read, batch["input_ids"])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_read_is_drawn_from_seed_and_step(name: str) -> None:
    batch = batch_of(8)
    reference, again = ids_read(name, batch), ids_read(name, batch)
    assert all(map(torch.equal, reference, again))
    for seed, step in ((1, 0), (0, 1)):
        assert not all(map(torch.equal, ids_read(name, batch, seed, step), reference))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_global_random_number_is_drawn(name: str) -> None:
    pretraining_module, batch = pretraining_module_of(name).eval(), batch_of(8)
    before = torch.get_rng_state()
    objective_of(name)(pretraining_module, batch, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("share", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_share_of_tokens_is_kept(name: str, share: float) -> None:
    batch = batch_of(256)
    ordinary, chosen = batch["input_ids"] > 4, chosen_by(name, batch, share)
    assert not chosen[~ordinary].any()
    total = int(ordinary.sum())
    found = int(chosen.sum()) / total
    # a draw for each token, or what rounding of a row's budget and its last word leave
    allowed = 4 * (share * (1 - share) / total) ** 0.5 if name not in WHOLE_WORDS else 0.02
    assert abs(found - share) < allowed


@pytest.mark.parametrize("name", WHOLE_WORDS)
def test_words_are_chosen_whole_and_each_row_has_one(name: str) -> None:
    batch = batch_of()
    chosen, ordinary = chosen_by(name, batch), batch["input_ids"] > 4
    assert chosen.any(dim=1).all()
    inside = MARKS.continuing(batch["input_ids"])[:, 1:] & ordinary[:, 1:] & ordinary[:, :-1]
    assert inside.any()
    assert torch.equal(chosen[:, 1:][inside], chosen[:, :-1][inside])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_learning_weight_gets_a_gradient(name: str) -> None:
    pretraining_module = pretraining_module_of(name).train()
    parts = objective_of(name)(pretraining_module, batch_of(), 0)
    assert all(part.ndim == 0 and torch.isfinite(part) for part in parts.values())
    sum(parts.values()).backward()
    idle = {key for key, weight in pretraining_module.named_parameters() if weight.grad is None}
    assert idle == set()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_part_falls(name: str) -> None:
    """On one batch, asked the same each time, every part of the loss can be learnt."""
    pretraining_module, batch = (
        pretraining_module_of(name, num_hidden_layers=1).eval(),
        batch_of(16),
    )
    objective = objective_of(name)
    optimizer = torch.optim.Adam(pretraining_module.parameters(), lr=5e-3)
    seen = []
    for _ in range(60):
        parts = objective(pretraining_module, batch, 0)
        seen.append({part: float(value.detach()) for part, value in parts.items()})
        if all(seen[-1][part] < 0.8 * first for part, first in seen[0].items()):
            return
        optimizer.zero_grad()
        sum(parts.values()).backward()
        optimizer.step()
    pytest.fail(f"they began at {seen[0]} and are at {seen[-1]}")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_finished_is_a_model_of_transformers_alone(name: str) -> None:
    pretraining_module = pretraining_module_of(name)
    model = pretraining_module.finished()
    assert isinstance(model, PreTrainedModel)
    assert type(model).__module__.startswith("transformers.")
    assert model.config.model_type == OBJECTIVES[name].family
    untrained = TRAINING_MODULES[name].untrained(_config_of(model))
    assert set(model.state_dict()) == set(untrained.state_dict())


def _config_of(model: PreTrainedModel) -> BertConfig:
    return BertConfig(**{**BERT_SHAPE, "vocab_size": VOCABULARY, "pad_token_id": 0})


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_of_special_tokens_alone_has_a_loss_that_is_a_number(name: str) -> None:
    ids = torch.tensor([[TOKENIZER.cls_token_id, TOKENIZER.sep_token_id]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    relations = (NEXT_SENTENCE, SENTENCE_ORDER, SENTENCE_STRUCTURE)
    labels = {name: torch.tensor([0]) for name in relations}
    parts = objective_of(name)(pretraining_module_of(name), {**batch, **labels}, 0)
    assert all(torch.isfinite(part) for part in parts.values())
