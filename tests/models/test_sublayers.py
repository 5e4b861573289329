"""Parts of a layer with matrices of their own and with one linear layer for several."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bertender.core.errors import ModelError
from bertender.models.family import FeedForward, Projections, Sublayer, copy_weights

HIDDEN, HEADS, SIZE, NEURONS = 8, 4, 2, 6

SEPARATE = Projections.separate("query", "key", "value", "output")
FUSED = Projections.fused("qkv", "output")
PLAIN = FeedForward.plain("inner", "output")
GATED = FeedForward.gated("inner_and_gate", "output")

LAYOUTS: dict[str, tuple[Sublayer, int]] = {
    "separate": (SEPARATE, HEADS * SIZE),
    "fused": (FUSED, HEADS * SIZE),
    "plain": (PLAIN, NEURONS),
    "gated": (GATED, NEURONS),
}
"""Sublayer, and how many channels it has."""

every_layout = pytest.mark.parametrize("name", LAYOUTS)


def layer_of(part: Sublayer, channels: int, bias: bool = True, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    rows = {each.path: len(each.names) * channels for each in part.inputs}
    modules = {path: nn.Linear(HIDDEN, count, bias) for path, count in rows.items()}
    return nn.ModuleDict({**modules, part.output: nn.Linear(channels, HIDDEN, bias)})


@every_layout
def test_what_is_heard_is_what_each_matrix_computes(name: str) -> None:
    part, channels = LAYOUTS[name]
    layer, heard = layer_of(part, channels), {}
    hooks = part.listen(layer, heard.__setitem__)
    states = torch.randn(2, 3, HIDDEN)
    for each in part.inputs:
        layer.get_submodule(each.path)(states)
    for hook in hooks:
        hook.remove()
    weights = part.weights(layer)
    assert set(heard) == {each for stacked in part.inputs for each in stacked.names}
    for matrix, computed in heard.items():
        expected = states @ weights[f"{matrix}.weight"].T + weights[f"{matrix}.bias"]
        torch.testing.assert_close(computed, expected)
    assert part.channels(layer) == channels


@every_layout
@pytest.mark.parametrize("bias", [True, False])
def test_selected_channels_are_those_of_every_matrix(name: str, bias: bool) -> None:
    part, channels = LAYOUTS[name]
    layer, numbers = layer_of(part, channels, bias), [0, 1, 5]
    before = {key: each.clone() for key, each in part.weights(layer).items()}
    state = {f"model.0.{key}": each for key, each in layer.state_dict().items()}
    part.select(state, "model.0", numbers)
    part.resize(layer, len(numbers))
    layer.load_state_dict({key.removeprefix("model.0."): each for key, each in state.items()})
    after = part.weights(layer)
    assert after.keys() == before.keys() and part.channels(layer) == 3
    for key, each in after.items():
        rows = before[key] if key.startswith("output") else before[key][numbers]
        expected = before[key][:, numbers] if key == "output.weight" else rows
        assert torch.equal(each, expected), key


@pytest.mark.parametrize(("source", "target"), [(FUSED, SEPARATE), (SEPARATE, FUSED)])
def test_a_copy_goes_by_the_names_of_the_matrices(source: Sublayer, target: Sublayer) -> None:
    theirs, ours = (layer_of(each, 8, seed=n) for n, each in enumerate((source, target)))
    copy_weights(source.weights(theirs), target.weights(ours))
    expected = source.weights(theirs)
    assert all(torch.equal(each, expected[name]) for name, each in target.weights(ours).items())


def test_a_bias_that_the_source_lacks_becomes_nothing() -> None:
    theirs, ours = layer_of(FUSED, 8, bias=False), layer_of(SEPARATE, 8, seed=1)
    copy_weights(FUSED.weights(theirs), SEPARATE.weights(ours))
    weights = SEPARATE.weights(ours)
    assert not any(each.any() for name, each in weights.items() if name.endswith(".bias"))
    assert torch.equal(weights["key.weight"], theirs["qkv"].weight[8:16])


@pytest.mark.parametrize(("source", "target"), [(GATED, PLAIN), (PLAIN, GATED)])
def test_a_gate_is_not_lost_in_a_copy(source: Sublayer, target: Sublayer) -> None:
    with pytest.raises(ModelError, match=r"gate\.weight are on one side of a copy alone"):
        copy_weights(*(each.weights(layer_of(each, NEURONS)) for each in (source, target)))


def test_a_bias_is_not_lost_in_a_copy() -> None:
    with pytest.raises(ModelError, match=r"inner\.bias, output\.bias"):
        copy_weights(*(PLAIN.weights(layer_of(PLAIN, NEURONS, bias)) for bias in (True, False)))
