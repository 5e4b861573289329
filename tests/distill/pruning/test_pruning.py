"""Pruning: what is cut out answers as what is gated off, and opens again as it was."""

from __future__ import annotations

import copy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import (
    PRUNABLE,
    head_numbers_of,
    heads_of,
    load_pretrained,
    neurons_of,
)
from distill.losses.signals import read_signals
from distill.pruning.cutting import Remaining, cut, least_missed, without_layers
from distill.pruning.importance import gated
from tests.distill.pruning.toys import everything
from tests.toy_models import tiny_classifier
from tests.toys import tiny_tokenizer

UNEVEN = Remaining(
    heads=((0, 2), (1,), (0, 1, 2, 3), (3, 1, 0)),
    neurons=(tuple(range(0, 64, 2)), (5,), tuple(range(64)), tuple(range(40, 64))),
)
"""Of the toys' four layers with 4 heads and 64 neurons each."""


LABELS = torch.tensor([0, 1, 1])


def tokens() -> dict[str, torch.Tensor]:
    texts = ["apple pear", "saw", "the hammer and the drill from the box"]
    batch = tiny_tokenizer()(texts, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def precise(model_type: str) -> PreTrainedModel:
    return tiny_classifier(model_type).double().eval()


def gates(
    model: PreTrainedModel, kept: Remaining, dtype: torch.dtype = torch.float64
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """1 for what is kept, 0 for what is not, layer by layer: heads and neurons."""

    def of(counts: list[int], numbers: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
        closed = [torch.zeros(count, dtype=dtype) for count in counts]
        for gate, open_ones in zip(closed, numbers, strict=True):
            gate[list(open_ones)] = 1
        return closed

    return of(heads_of(model.config), kept.heads), of(neurons_of(model.config), kept.neurons)


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_what_is_cut_answers_as_what_is_gated_off(model_type: str) -> None:
    model, batch = precise(model_type), tokens()
    pruned = cut(model, UNEVEN)
    with torch.inference_mode():
        with gated(model, *gates(model, UNEVEN)):
            expected = model(**batch).logits
        whole, found = model(**batch).logits, pruned(**batch).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (whole - expected).abs().max() > 1e-3, "what is cut away matters"
    assert pruned.num_parameters() < model.num_parameters()


VARIANTS: dict[str, dict[str, Any]] = {
    "keys shared with positions": {"share_att_key": True},
    "positions of one kind": {"pos_att_type": ["p2c"]},
    "a convolution beside the first layer": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "no relative positions": {"relative_attention": False, "position_biased_input": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_deberta_is_cut(name: str) -> None:
    model, batch = tiny_classifier("deberta-v2", **VARIANTS[name]).double().eval(), tokens()
    with torch.inference_mode(), gated(model, *gates(model, UNEVEN)):
        expected = model(**batch).logits
    with torch.inference_mode():
        found = cut(model, UNEVEN)(**batch).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_each_layer_of_mpnet_has_its_own_columns_of_the_shared_bias() -> None:
    """Of a bias that is all that tells the heads of a layer apart."""
    model, batch = precise("mpnet"), tokens()
    with torch.no_grad():
        model.base_model.encoder.relative_attention_bias.weight.normal_(std=3.0)
    with torch.inference_mode(), gated(model, *gates(model, UNEVEN)):
        expected = model(**batch).logits
    pruned = cut(model, UNEVEN)
    assert head_numbers_of(pruned.config) == [[0, 2], [1], [0, 1, 2, 3], [0, 1, 3]]
    again = copy.deepcopy(pruned)
    with torch.inference_mode():
        torch.testing.assert_close(again(**batch).logits, expected, rtol=0, atol=1e-9)
        shorter = without_layers(pruned, (0, 3))
        assert head_numbers_of(shorter.config) == [[0, 2], [0, 1, 3]]
        torch.testing.assert_close(
            shorter(**batch).logits,
            cut(without_layers(model, (0, 3)), Remaining(UNEVEN.heads[::3], UNEVEN.neurons[::3]))(
                **batch
            ).logits,
            rtol=0,
            atol=1e-9,
        )


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_it_opens_again_with_bertender_and_nowhere_else(model_type: str, tmp_path: Path) -> None:
    pruned = cut(tiny_classifier(model_type), UNEVEN).eval()
    pruned.save_pretrained(tmp_path)
    again, found = load_pretrained(AutoModelForSequenceClassification, str(tmp_path))
    assert not any(found.values())
    assert type(again) is type(pruned) and heads_of(again.config) == [2, 1, 4, 3]
    with torch.inference_mode():
        torch.testing.assert_close(again(**tokens()).logits, pruned(**tokens()).logits)
    assert again.config.model_type.startswith("bertender-pruned-")


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_a_model_can_be_cut_twice(model_type: str) -> None:
    model, batch = precise(model_type), tokens()
    once = cut(model, UNEVEN)
    more = Remaining(((1,), (0,), (0, 3), (0, 2)), ((0, 4), (0,), tuple(range(8)), (23,)))
    both = Remaining(((2,), (1,), (0, 3), (0, 3)), ((0, 8), (5,), tuple(range(8)), (63,)))
    with torch.inference_mode():
        twice = cut(once, more)(**batch).logits
        torch.testing.assert_close(twice, cut(model, both)(**batch).logits, rtol=0, atol=1e-9)


def test_everything_changes_nothing() -> None:
    model, batch = precise("bert"), tokens()
    with torch.inference_mode():
        found = cut(model, everything(model.config))(**batch).logits
        torch.testing.assert_close(found, model(**batch).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_even_layers_open_in_plain_transformers(model_type: str, tmp_path: Path) -> None:
    model, batch = tiny_classifier(model_type).eval(), tokens()
    whole = everything(model.config)
    even = Remaining(whole.heads, (tuple(range(5)), tuple(range(1, 6)), *[tuple(range(9, 14))] * 2))
    pruned = cut(model, even).eval()
    assert type(pruned) is type(model) and neurons_of(pruned.config) == [5] * 4
    pruned.save_pretrained(tmp_path)
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.inference_mode(), gated(model, *gates(model, even, torch.float32)):
        expected = model(**batch).logits
    with torch.inference_mode():
        torch.testing.assert_close(opened(**batch).logits, expected)
    uneven = cut(pruned, Remaining(everything(pruned.config).heads, ((0,), (0, 1), (2,), (3,))))
    assert type(uneven) is not type(model), "an even model can be cut again"


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_gates_of_their_own_for_each_example(model_type: str) -> None:
    model, batch = precise(model_type), tokens()
    open_, closed = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    with torch.inference_mode():
        with gated(model, [torch.stack([open_, closed, open_])]):
            mixed = model(**batch).logits
        with gated(model, [closed]):
            without = model(**batch).logits
        whole = model(**batch).logits
    torch.testing.assert_close(mixed[[0, 2]], whole[[0, 2]], rtol=0, atol=1e-12)
    torch.testing.assert_close(mixed[1], without[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_signals_of_uneven_layers_are_read(model_type: str) -> None:
    pruned, batch = cut(tiny_classifier(model_type), UNEVEN).eval(), tokens()
    layers = frozenset({1, 2, 4})
    with torch.inference_mode():
        signals = read_signals(pruned, batch, {"queries": layers, "attention_scores": layers})
    seq = batch["input_ids"].shape[1]
    for layer, heads in ((1, 2), (2, 1), (4, 3)):
        assert signals.queries[layer].shape == (3, heads, seq, 8)
        assert signals.attention_scores[layer].shape == (3, heads, seq, seq)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ModelError, match=r"a 'albert' model cannot be pruned.*: bert, "):
        cut(tiny_classifier("albert"), UNEVEN)
    model = tiny_classifier("bert")
    whole = everything(model.config)
    nothing = Remaining(((), *whole.heads[1:]), whole.neurons)
    with pytest.raises(ModelError, match=r"layer 0 cannot keep heads \[\] of its 4"):
        cut(model, nothing)
    beyond = Remaining(whole.heads, (*whole.neurons[:3], (64,)))
    with pytest.raises(ModelError, match=r"layer 3 cannot keep neurons \[64\] of its 64"):
        cut(model, beyond)


@pytest.mark.parametrize("model_type", PRUNABLE)
def test_a_layer_that_does_nothing_goes_first(model_type: str) -> None:
    """One that writes next to nothing: nobody misses it, and the answers stay."""
    model = precise(model_type)
    layer, family = encoder_layers(model)[2], family_of(model)
    batch = {**tokens(), "labels": LABELS}
    with torch.no_grad():
        for path in (family.projections.output, family.feed_forward.output):
            for weights in layer.get_submodule(path).parameters():
                weights.zero_()
        for each, path in (
            (encoder_layers(model)[1], family.norms.feed_forward),
            (layer, family.norms.attention),
            (layer, family.norms.feed_forward),
        ):
            for name, weights in each.get_submodule(path).named_parameters():
                weights.fill_(float(name == "weight"))
    stay = least_missed(model, [batch], 1)
    scored = tokens()
    with torch.inference_mode():
        whole = model(**scored).logits
        shorter = without_layers(model, (0, 1, 3))(**scored).logits
    torch.testing.assert_close(shorter, whole, rtol=0, atol=1e-6)
    assert stay == least_missed(model, [batch], 1) and len(stay) == 3
    with torch.inference_mode():
        losses = {
            kept: float(
                functional.cross_entropy(without_layers(model, kept)(**scored).logits, LABELS)
            )
            for kept in combinations(range(4), 3)
            if family.settings_of_layers(model.config, kept) is not None
        }
    assert stay == min(losses, key=losses.get), "the layer goes without which the loss is lowest"


def test_layers_of_an_uneven_model_go_with_their_widths() -> None:
    pruned = cut(precise("bert"), UNEVEN)
    shorter = without_layers(pruned, (0, 3))
    assert heads_of(shorter.config) == [2, 3] and neurons_of(shorter.config) == [32, 24]
    ours, theirs = encoder_layers(shorter)[1], encoder_layers(pruned)[3]
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
