"""ELECTRA: what the generator samples, what the discriminator is told, what learns from what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

from distill.pretraining.replaced_tokens import sampled
from tests.distill.pretraining.batches import (
    TOKENIZER,
    batch_of,
    objective_of,
    pretraining_module_of,
)


def heard(pretraining_module: Any, batch: dict[str, torch.Tensor]) -> tuple[dict[str, Any], Any]:
    """The parts of a loss, with the tokens and verdicts of the discriminator."""
    calls: list[Any] = []
    hook = pretraining_module.model.register_forward_hook(
        lambda module, inputs, named, output: calls.append((named["input_ids"], output.logits)),
        with_kwargs=True,
    )
    parts = objective_of("rtd")(pretraining_module, batch, 0)
    hook.remove()
    return dict(parts), calls[0]


def test_embeddings_are_shared_and_the_generator_is_a_quarter_as_wide() -> None:
    pretraining_module: Any = pretraining_module_of("rtd")
    discriminator, generator = pretraining_module.model, pretraining_module.generator
    assert generator.electra.embeddings is discriminator.electra.embeddings
    table = discriminator.get_input_embeddings().weight
    assert generator.generator_lm_head.weight is table
    assert generator.config.hidden_size * 4 == discriminator.config.hidden_size
    assert generator.config.intermediate_size * 4 == discriminator.config.intermediate_size
    assert generator.config.num_hidden_layers == discriminator.config.num_hidden_layers


def test_the_discriminators_loss_is_over_all_real_tokens_and_right_guesses_are_originals() -> None:
    pretraining_module, batch = pretraining_module_of("rtd").eval(), batch_of()
    parts, (replaced, verdicts) = heard(pretraining_module, batch)
    real = batch["attention_mask"].bool()
    labels = (replaced != batch["input_ids"]).float()
    expected = functional.binary_cross_entropy_with_logits(verdicts[real], labels[real])
    assert float(parts["discriminator"].detach()) == pytest.approx(
        50 * float(expected.detach()), rel=1e-5
    )
    assert 0 < labels.sum() < 0.2 * real.sum()


class Knowing(torch.nn.Module):
    """An encoder whose states are what it is to say, whatever it reads."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, input_ids: torch.Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.states)


def test_a_generator_that_knows_everything_leaves_no_token_replaced() -> None:
    """Its samples are the originals, so every label is 0."""
    pretraining_module: Any = pretraining_module_of("rtd").eval()
    batch = batch_of(8)
    logits = functional.one_hot(batch["input_ids"], len(TOKENIZER)) * 100.0
    generator = pretraining_module.generator
    generator.electra = Knowing(logits)
    generator.generator_predictions = generator.generator_lm_head = torch.nn.Identity()
    parts, (replaced, verdicts) = heard(pretraining_module, batch)
    assert torch.equal(replaced, batch["input_ids"])
    real = batch["attention_mask"].bool()
    expected = 50 * functional.softplus(verdicts[real]).mean()  # -log of "original"
    assert float(parts["discriminator"].detach()) == pytest.approx(
        float(expected.detach()), rel=1e-5
    )


def test_the_generator_learns_nothing_from_the_discriminator() -> None:
    pretraining_module: Any = pretraining_module_of("rtd").eval()
    parts, _ = heard(pretraining_module, batch_of())
    parts["discriminator"].backward()
    own = {
        key: weight.grad
        for key, weight in pretraining_module.generator.named_parameters()
        if "embeddings." not in key and "lm_head.weight" not in key
    }
    assert own and all(gradient is None for gradient in own.values())


def test_samples_follow_the_generators_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1]).log().expand(20000, -1)
    found = sampled(logits, torch.rand(20000)).bincount(minlength=4) / 20000
    assert torch.allclose(found, torch.tensor([0.5, 0.2, 0.2, 0.1]), atol=0.015)


def test_samples_by_hand() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(5, -1)
    draws = torch.tensor([0.0, 0.49, 0.51, 0.76, 1.0])
    assert sampled(logits, draws).tolist() == [0, 0, 1, 2, 2]


def test_all_chosen_tokens_become_masks_for_the_generator() -> None:
    pretraining_module: Any = pretraining_module_of("rtd").eval()
    batch, read = batch_of(), []
    pretraining_module.generator.electra.register_forward_pre_hook(
        lambda module, inputs, named: read.append(named["input_ids"]), with_kwargs=True
    )
    objective_of("rtd")(pretraining_module, batch, 0)
    changed = read[0] != batch["input_ids"]
    assert (read[0][changed] == TOKENIZER.mask_token_id).all()
    share = changed.sum() / (batch["input_ids"] > 4).sum()
    assert abs(float(share) - 0.15) < 0.03


def disentangled_step(part: str) -> tuple[Any, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A module, its word tables, and their gradients of one part of the loss."""
    module: Any = pretraining_module_of("rtd-gdes").eval()
    own, delta = tables_of(module)
    before = {"own": own.detach().clone(), "delta": delta.detach().clone()}
    objective_of("rtd-gdes")(module, batch_of(), 0)[part].backward()
    gradients = {"own": own.grad, "delta": delta.grad}
    return module, before, gradients


def tables_of(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    words = "word_embeddings.weight"
    return (
        module.generator.electra.embeddings.get_parameter(words),
        module.model.electra.embeddings.get_parameter(words),
    )


def test_disentangled_embeddings_learn_from_one_loss_each() -> None:
    _, before, gradients = disentangled_step("generator")
    assert not before["delta"].any() and before["own"].any()
    assert gradients["own"].abs().sum() > 0 and gradients["delta"] is None
    _, _, gradients = disentangled_step("discriminator")
    assert gradients["delta"].abs().sum() > 0 and gradients["own"] is None


def test_the_discriminator_reads_and_is_written_with_the_sum() -> None:
    """E_D = E_G + E_delta: 0.25 of an entry is as if the plain model had 0.25 more."""
    module: Any = pretraining_module_of("rtd-gdes").eval()
    batch, (own, delta) = batch_of(4), tables_of(module)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        delta[7] += 0.25
        verdicts = module.verdicts(batch)
        for _ in range(2):  # to ask for it changes nothing
            model = module.finished()
            assert torch.equal(model.get_input_embeddings().weight[7], own[7] + 0.25)
            assert torch.equal(model.get_input_embeddings().weight[8], own[8])
        torch.testing.assert_close(model(**inputs).logits, verdicts)
        plain: Any = pretraining_module_of("rtd").eval()
        plain.model.get_input_embeddings().weight[7] += 0.25
        torch.testing.assert_close(plain.verdicts(batch), verdicts)
