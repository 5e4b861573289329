"""Weights of few bits: their levels, their groups and their distance."""

from __future__ import annotations

import pytest
import torch

from quantize.q_bert import LEVEL_DISTANCES, LowBitWeight
from quantize.qat import straight_through

every_number_of_bits = pytest.mark.parametrize("bits", LEVEL_DISTANCES)


def normal(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1))


@every_number_of_bits
def test_every_level_is_an_odd_multiple_of_the_scale(bits: int) -> None:
    weight, rounding = normal(8, 4096), LowBitWeight(bits, groups=1)
    integers = rounding.exported(weight) / rounding.scales(weight)
    wanted = torch.arange(1 - 2**bits, 2**bits, 2).float()
    assert torch.allclose(integers.unique().round(), wanted)
    assert (integers - integers.round()).abs().max() < 1e-4


@every_number_of_bits
@pytest.mark.parametrize("other", [0.8, 1.25])
def test_the_distance_has_the_least_error_of_normal_weights(bits: int, other: float) -> None:
    weight, rounding = normal(4, 50_000), LowBitWeight(bits, groups=1)
    error = (rounding.exported(weight) - weight).square().mean()
    scales = other * rounding.scales(weight)
    largest = 2**bits - 1
    integers = (2 * (weight / (2 * scales)).floor() + 1).clamp(-largest, largest)
    assert error < (integers * scales - weight).square().mean()


def test_groups_are_of_consecutive_outputs() -> None:
    weight = normal(6, 5000) * torch.tensor([1.0, 1, 10, 10, 100, 100]).unsqueeze(1)
    scales = LowBitWeight(2, groups=3).scales(weight).squeeze(1)
    assert scales[0] == scales[1] and scales[2] == scales[3] and scales[4] == scales[5]
    assert scales[::2] / scales[0] == pytest.approx([1, 10, 100], rel=0.05)
    assert scales[0] == pytest.approx(LEVEL_DISTANCES[2] / 2, rel=0.05)


@pytest.mark.parametrize("groups", [1, 4, 5, 7, 128])
def test_groups_need_not_divide_the_outputs(groups: int) -> None:
    scales = LowBitWeight(3, groups).scales(normal(7, 20))
    assert scales.shape == (7, 1) and len(scales.unique()) == min(groups, 7)


def test_a_weight_of_zeros_stays_near_zero() -> None:
    assert LowBitWeight(2, groups=2).exported(torch.zeros(4, 3)).abs().max() < 1e-30


@every_number_of_bits
def test_what_was_rounded_is_what_is_exported_and_the_gradient_passes(bits: int) -> None:
    weight = normal(6, 10).requires_grad_()
    rounding = LowBitWeight(bits, groups=2)
    left = rounding(weight)
    assert torch.equal(left, rounding.exported(weight))
    (left * torch.arange(10.0)).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.arange(10.0).expand(6, 10))


def test_what_is_trained_is_exactly_what_quantizing_leaves() -> None:
    """Values that are far away took the last bits with them."""
    values = torch.tensor([1e4, -3.0, 0.3], requires_grad=True)
    left = torch.tensor([0.1, 0.7, 0.1])
    trained = straight_through(values, left)
    assert torch.equal(trained, left)
    trained.sum().backward()
    assert values.grad is not None and torch.equal(values.grad, torch.ones(3))
