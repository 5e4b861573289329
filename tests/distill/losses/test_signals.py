"""Signals read with hooks equal what the model itself computes, and no more is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES
from distill.losses import signals as signals_module
from distill.losses.signals import (
    ATTENTION_SIGNALS,
    READERS,
    STATE_SIGNALS,
    Signal,
    Wanted,
    read_signals,
)
from tests.toy_models import BERT_SHAPE, ODD, UNKNOWN, tiny_classifier

MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
EVERYTHING: Wanted = {
    **dict.fromkeys(ATTENTION_SIGNALS, frozenset(range(1, 5))),
    **dict.fromkeys(STATE_SIGNALS, frozenset(range(5))),
}
"""All layers of the toys, and their embeddings."""


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(5, 19).reshape(2, 7)
    return {"input_ids": torch.where(MASK.bool(), ids, 0), "attention_mask": MASK}


READ_OTHERWISE = [name for name, (_, changes) in ODD.items() if "return_dict" not in changes]


@pytest.fixture(params=["albert", "bert", "deberta-v2", "modernbert", *READ_OTHERWISE])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    model_type, changes = ODD.get(request.param, (request.param, {}))
    return tiny_classifier(model_type, attn_implementation="eager", **changes)


def test_scores_are_what_the_models_own_softmax_reads(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), EVERYTHING)
    attentions = model(**batch(), output_attentions=True).attentions
    assert len(signals.attention_scores) == len(attentions) == 4
    for layer, probabilities in enumerate(attentions, start=1):
        scores = signals.attention_scores[layer]
        unread = ~MASK.bool()[:, None, None, :] | (probabilities == 0)  # beyond a local layer
        masked = scores.masked_fill(unread, -torch.inf)
        real = MASK.bool()
        ours, theirs = masked.softmax(-1).transpose(1, 2)[real], probabilities.transpose(1, 2)[real]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_queries_keys_and_values_of_every_layer(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), EVERYTHING)
    heads = model.config.num_attention_heads
    parts = (signals.queries, signals.keys, signals.values)
    states = [state for part in parts for state in part.values()]
    assert [state.shape[:3] for state in states] == [(2, heads, 7)] * 12
    sums = {float(state.detach().sum()) for state in states}
    assert len(sums) == 12, "no layer and no part is read twice"


def test_hidden_states_and_logits_are_the_models_own(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), EVERYTHING)
    outputs = model(**batch(), output_hidden_states=True)
    torch.testing.assert_close(signals.logits, outputs.logits)
    assert list(signals.hidden_states) == list(signals.sentence_states) == list(range(5))
    last = model.base_model(**batch())[0]  # not always the states that are listed last
    for layer, states in enumerate((*outputs.hidden_states[:-1], last)):
        torch.testing.assert_close(signals.hidden_states[layer], states)
        torch.testing.assert_close(signals.sentence_states[layer], states[:, 0])


@pytest.mark.parametrize("signal", sorted(EVERYTHING))
def test_only_the_wanted_layers_are_computed(
    signal: Signal, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(read_signals(model, batch(), EVERYTHING), signal)
    computed: list[tuple[str, int]] = []

    def counted(name: Signal) -> Callable[[Any, int], torch.Tensor]:
        read = READERS[name]
        return lambda heard, layer: computed.append((name, layer)) or read(heard, layer)

    monkeypatch.setattr(signals_module, "READERS", {name: counted(name) for name in READERS})
    read = read_signals(model, batch(), {signal: frozenset({4, 2})})
    assert computed == [(signal, 2), (signal, 4)]
    assert read.depth == 4 and list(getattr(read, signal)) == [2, 4]
    for layer, tensor in getattr(read, signal).items():
        torch.testing.assert_close(tensor, whole[layer], rtol=0, atol=0)
    others = EVERYTHING.keys() - {signal}
    assert not any(getattr(read, other) for other in others), "what was not asked for"


def test_the_family_computes_scores_of_the_wanted_layers_alone(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[model.config.model_type]
    computed = []

    def counted(*given: Any) -> torch.Tensor:
        computed.append(given[2].shape)
        return family.scores(*given)

    counting = replace(family, scores=counted)
    monkeypatch.setitem(FAMILIES, model.config.model_type, counting)
    scores = read_signals(model, batch(), {"attention_scores": frozenset({4})}).attention_scores
    assert len(computed) == 1 and list(scores) == [4]


def test_gradients_flow_and_no_hook_stays(model: PreTrainedModel) -> None:
    signals = read_signals(model, batch(), {"attention_scores": frozenset({1})})
    signals.attention_scores[1].sum().backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    hooks = [m._forward_hooks or m._forward_pre_hooks for m in model.modules()]
    assert not any(hooks)


def test_the_same_scores_under_another_implementation_of_attention() -> None:
    eager = tiny_classifier("bert", attn_implementation="eager")
    fused = tiny_classifier("bert", attn_implementation="sdpa")
    ours, theirs = (
        read_signals(model, batch(), EVERYTHING).attention_scores for model in (fused, eager)
    )
    torch.testing.assert_close(ours[1], theirs[1])


def test_logits_and_hidden_states_need_no_row_of_families() -> None:
    model = tiny_classifier(UNKNOWN, **BERT_SHAPE)
    read = read_signals(model, batch(), {signal: EVERYTHING[signal] for signal in STATE_SIGNALS})
    assert len(read.hidden_states) == len(read.sentence_states) == 5
    with pytest.raises(ModelError, match=UNKNOWN):
        read_signals(model, batch(), {"values": frozenset({1})})
