"""What heads and neurons are worth, and which of them stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.core.errors import DataError, UnknownNameError
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import PRUNABLE
from distill.pruning.config import IMPORTANCES, Across
from distill.pruning.cutting import Remaining, cut
from distill.pruning.importance import (
    Importance,
    chosen,
    gated,
    importance_of,
    shares_of_rounds,
)
from tests.distill.pruning.toys import everything
from tests.toy_models import tiny_classifier
from tests.toys import tiny_tokenizer

READING_TEXT = sorted(name for name, reads_text in IMPORTANCES.items() if reads_text)
SIZE = 8
"""Width of a toy's head."""


def batch(longest: int = 0) -> dict[str, torch.Tensor]:
    texts = ["apple pear", "saw", "the hammer and the drill from the box"]
    padding = {"padding": "max_length", "max_length": longest} if longest else {"padding": True}
    tokens = tiny_tokenizer()(texts, return_tensors="pt", **padding)
    kept = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return {**kept, "labels": torch.tensor([0, 1, 1])}


def precise(model_type: str = "bert") -> PreTrainedModel:
    return tiny_classifier(model_type).double().eval()


def example_losses(model: PreTrainedModel, gates: list[torch.Tensor]) -> torch.Tensor:
    given_ = batch()
    labels = given_.pop("labels")
    with torch.no_grad(), gated(model, gates):
        return functional.cross_entropy(model(**given_).logits, labels, reduction="none")


def test_the_gradient_is_what_a_gate_would_change() -> None:
    """By finite differences: how much each example's loss changes with the gate on one head."""
    model, step = precise(), 1e-5
    slopes = torch.zeros(4, dtype=torch.float64)
    for head in range(4):
        losses = []
        for sign in (1, -1):
            gates = [torch.ones(4, dtype=torch.float64) for _ in range(4)]
            gates[1][head] += sign * step
            losses.append(example_losses(model, gates))
        slopes[head] = ((losses[0] - losses[1]) / (2 * step)).abs().mean()
    found = importance_of(model, "gradient", [batch()]).heads[1]
    torch.testing.assert_close(found.double(), slopes, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", READING_TEXT)
@pytest.mark.parametrize("model_type", PRUNABLE)
def test_padding_has_no_part(name: str, model_type: str) -> None:
    model = precise(model_type)
    short, long = (importance_of(model, name, [batch(longest)]) for longest in (0, 40))
    for ours, theirs in zip(
        (*short.heads, *short.neurons), (*long.heads, *long.neurons), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", READING_TEXT)
def test_how_examples_are_batched_has_no_part(name: str) -> None:
    model, whole = precise(), batch()
    rows = [{key: value[row : row + 1] for key, value in whole.items()} for row in range(3)]
    together, apart = importance_of(model, name, [whole]), importance_of(model, name, rows)
    for ours, theirs in zip(together.heads, apart.heads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(IMPORTANCES.keys() - {"random"}))
def test_what_nobody_reads_is_worth_nothing(name: str) -> None:
    model = precise()
    family, layer = family_of(model), encoder_layers(model)[2]
    with torch.no_grad():
        layer.get_submodule(family.projections.output).weight[:, SIZE : 2 * SIZE] = 0
        layer.get_submodule(family.feed_forward.output).weight[:, 7] = 0
    found = importance_of(model, name, [batch()]).normalised
    assert found.heads[2][1] == 0 and found.neurons[2][7] == 0
    assert found.heads[2].argmin() == 1 and (found.heads[2] > 0).sum() == 3
    for layer_scores in (*found.heads, *found.neurons):
        assert float(layer_scores.norm()) == pytest.approx(1, abs=1e-5), "comparable layers"


def test_the_squared_gradient_foretells_what_the_loss_rises_by() -> None:
    """Of examples apart: its mean is the mean of the squares, not the square of a mean."""
    model, whole = precise(), batch()
    rows = [{key: value[row : row + 1] for key, value in whole.items()} for row in range(3)]
    each = [importance_of(model, "gradient", [row]).neurons[1].square() for row in rows]
    found = importance_of(model, "fisher", [whole]).neurons[1]
    torch.testing.assert_close(found, torch.stack(each).mean(0), rtol=1e-5, atol=0)


def test_layers_are_compared_by_their_sums_with_heads_and_neurons_as_they_were() -> None:
    found = importance_of(precise(), "fisher", [batch()])
    shares = found.by_layer
    for heads, neurons, before in zip(shares.heads, shares.neurons, found.heads, strict=True):
        assert float(heads.sum() + neurons.sum()) == pytest.approx(1)
        torch.testing.assert_close(heads / heads[0], before / before[0])
    nothing = Importance((torch.zeros(2),), (torch.zeros(3),)).by_layer
    assert not nothing.heads[0].any() and not nothing.neurons[0].any()


@pytest.mark.parametrize("scale", [1.0, 1e-14, 1e-30])
def test_layers_are_compared_however_small_their_scores_are(scale: float) -> None:
    """The squared gradients of a model that is sure of its labels are tiny."""
    scores = torch.tensor([3.0, 4.0])
    found = Importance((scores * scale,), (torch.zeros(2),)).normalised
    torch.testing.assert_close(found.heads[0], scores / 5)
    assert not found.neurons[0].any()


def test_chance_is_drawn_from_the_seed_alone() -> None:
    model = precise()
    one, again, other = (importance_of(model, "random", [], seed) for seed in (1, 1, 2))
    assert torch.equal(one.heads[0], again.heads[0])
    assert not torch.equal(one.heads[0], other.heads[0])


def test_scores_of_a_pruned_model_are_those_of_what_is_left() -> None:
    model = precise()
    importance = importance_of(model, "magnitude", []).normalised
    kept = Remaining(chosen(importance.heads, [4] * 4, 0.5), everything(model.config).neurons)
    pruned = importance_of(cut(model, kept), "magnitude", []).normalised
    for before, after, heads in zip(importance.heads, pruned.heads, kept.heads, strict=True):
        expected = functional.normalize(before[list(heads)], dim=0)
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no importance 'gradent'. Did you mean 'gradient'"):
        importance_of(precise(), "gradent", [batch()])
    for name in READING_TEXT:
        with pytest.raises(DataError, match="no example to score"):
            importance_of(precise(), name, [])


scores = st.lists(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6), min_size=1, max_size=5
).map(lambda layers: tuple(torch.tensor(layer) for layer in layers))


@given(scores, st.floats(0, 0.99), st.sampled_from(["model", "layer"]))
def test_the_share_goes_and_the_best_stay(
    layers: tuple[torch.Tensor, ...], share: float, across: Across
) -> None:
    before = [len(layer) for layer in layers]
    kept, total = chosen(layers, before, share, across), sum(before)
    assert all(kept)
    if across == "model":
        assert sum(map(len, kept)) == max(total - round(total * share), len(layers))
    for numbers, layer in zip(kept, layers, strict=True):
        if across == "layer":
            assert len(numbers) == max(len(layer) - round(len(layer) * share), 1)
        gone = set(range(len(layer))) - set(numbers)
        assert all(layer[a] >= layer[b] for a in numbers for b in gone)


def test_across_the_model_the_least_of_all_layers_go() -> None:
    heads = (torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0.1, 0.2, 0.3]))
    assert chosen(heads, [3, 3], 1 / 3) == ((0, 1, 2), (2,))
    assert chosen(heads, [3, 3], 1 / 3, "layer") == ((0, 1), (1, 2))
    assert chosen(heads, [3, 3], 0.0) == ((0, 1, 2), (0, 1, 2))


@example(layers=2, heads=5, share=0.05, rounds=1, across="model")
@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.floats(0, 0.95),
    st.integers(1, 20),
    st.sampled_from(["model", "layer"]),
)
def test_many_rounds_leave_as_much_as_one(
    layers: int, heads: int, share: float, rounds: int, across: Across
) -> None:
    """Counted, not as shares: each round rounds for itself."""
    before = [heads] * layers
    left = [torch.rand(heads, generator=torch.Generator().manual_seed(n)) for n in range(layers)]
    at_once = chosen(tuple(left), before, share, across)
    for each in shares_of_rounds(share, rounds):
        kept = chosen(tuple(left), before, each, across)
        left = [layer[list(numbers)] for layer, numbers in zip(left, kept, strict=True)]
    assert sum(map(len, left)) == sum(map(len, at_once))


def test_taylor_is_the_change_that_the_gradient_foretells() -> None:
    model, given_ = precise(), batch()
    family, layer = family_of(model), encoder_layers(model)[1]
    weight = layer.get_submodule(family.projections.output).weight
    tokens = {name: given_[name] for name in ("input_ids", "attention_mask")}
    loss = functional.cross_entropy(model(**tokens).logits, given_["labels"], reduction="sum")
    (slope,) = torch.autograd.grad(loss, [weight])
    expected = (weight * slope).abs()[:, SIZE : 2 * SIZE].sum() / 3
    found = importance_of(model, "taylor", [given_]).heads[1][1]
    assert float(found) == pytest.approx(float(expected.detach()), rel=1e-5)
