"""Signals read with hooks equal what the model itself computes, for every row of FAMILIES."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.families import FAMILIES
from distill.signals import ATTENTION_SIGNALS, Signal, read_signals
from tests.distill.toys import tiny_classifier

MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
EVERYTHING: frozenset[Signal] = ATTENTION_SIGNALS | {"hidden_states", "logits"}


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 19).reshape(2, 7)
    return {"input_ids": torch.where(MASK.bool(), ids, 0), "attention_mask": MASK}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny_classifier(request.param, attn_implementation="eager")


def test_scores_are_what_the_models_own_softmax_reads(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), EVERYTHING)
    attentions = model(**batch(), output_attentions=True).attentions
    assert len(signals.attention_scores) == len(attentions) == 4
    for scores, probabilities in zip(signals.attention_scores, attentions, strict=True):
        masked = scores.masked_fill(~MASK.bool()[:, None, None, :], -torch.inf)
        real = MASK.bool()
        ours, theirs = masked.softmax(-1).transpose(1, 2)[real], probabilities.transpose(1, 2)[real]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_queries_keys_and_values_of_every_layer(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), EVERYTHING)
    heads = model.config.num_attention_heads
    parts = (signals.queries, signals.keys, signals.values)
    assert [state.shape[:3] for states in parts for state in states] == [(2, heads, 7)] * 12
    sums = {float(state.detach().sum()) for states in parts for state in states}
    assert len(sums) == 12, "no layer and no part is read twice"


def test_hidden_states_and_logits_are_the_models_own(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), EVERYTHING)
    outputs = model(**batch(), output_hidden_states=True)
    torch.testing.assert_close(signals.logits, outputs.logits)
    for ours, theirs in zip(signals.hidden_states, outputs.hidden_states, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_flow_and_no_hook_stays(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), frozenset({"attention_scores"}))
    signals.attention_scores[0].sum().backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in model.modules()]
    assert not any(hooks)
    assert (signals.values, signals.hidden_states) == ((), ()), "what was not asked for"


def test_the_same_scores_under_another_implementation_of_attention() -> None:
    eager = tiny_classifier("bert", attn_implementation="eager")
    fused = tiny_classifier("bert", attn_implementation="sdpa")
    ours, theirs = (
        read_signals(model, batch(), EVERYTHING).attention_scores for model in (fused, eager)
    )
    torch.testing.assert_close(ours[0], theirs[0])


def test_logits_and_hidden_states_need_no_row_of_families() -> None:
    model = tiny_classifier("modernbert")
    assert len(read_signals(model, batch(), frozenset({"hidden_states"})).hidden_states) == 5
    with pytest.raises(ModelError, match="modernbert"):
        read_signals(model, batch(), frozenset({"values"}))
