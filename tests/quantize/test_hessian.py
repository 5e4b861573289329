"""Estimates of a Hessian, against Hessians that are known entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from quantize.sensitivity import (
    CHANGE,
    FEWEST_PROBES,
    MOST_PROBES,
    MOST_STEPS,
    Estimate,
    mean_diagonals,
    top_eigenvalues,
)

INPUTS, CLASSES = 6, 3


def quadratic(eigenvalues: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a loss, its weight and its Hessian, of some eigenvalues in random directions."""
    generator = torch.Generator().manual_seed(1)
    size = len(eigenvalues)
    axes, _ = torch.linalg.qr(torch.randn(size, size, generator=generator))
    hessian = axes @ torch.diag(eigenvalues) @ axes.T
    weight = torch.randn(size, generator=generator).requires_grad_()
    return weight @ hessian @ weight / 2, weight, hessian


def logistic() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss of a logistic model on labelled rows, its weight and its dense Hessian."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(40, INPUTS, generator=generator)
    labels = torch.randint(0, CLASSES, (40,), generator=generator)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(rows @ weight.T, labels)

    weight = torch.randn(CLASSES, INPUTS, generator=generator)
    hessian = torch.autograd.functional.hessian(loss, weight)  # type: ignore[no-untyped-call]
    weight.requires_grad_()
    return loss(weight), weight, hessian.reshape(weight.numel(), -1)


HESSIANS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {
    "logistic": logistic,
    "one large": lambda: quadratic(torch.tensor([5.0, 1.0, 1.0, 1.0])),
    "two of almost one size": lambda: quadratic(torch.tensor([5.0, 4.9, 1.0, 0.5, 0.1])),
    "negative ones larger in size": lambda: quadratic(torch.tensor([-5.0, 3.0, 1.0, 0.2])),
    "two signs of one size": lambda: quadratic(torch.tensor([-3.0, 3.0, 1.0, 0.2, 0.1, -0.5])),
    "none positive": lambda: quadratic(torch.tensor([-5.0, -3.0, -2.0])),
    "many close together": lambda: quadratic(torch.linspace(0.0, 1.0, 200)),
    "flat": lambda: quadratic(torch.zeros(4)),
}


def estimated(name: str, estimator: Callable[..., list[Estimate]]) -> tuple[Estimate, torch.Tensor]:
    loss, weight, hessian = HESSIANS[name]()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    (found,) = estimator([gradient], [weight], torch.Generator().manual_seed(0))
    return found, hessian


@pytest.mark.parametrize("name", HESSIANS)
def test_the_top_eigenvalue_is_that_of_the_dense_hessian(name: str) -> None:
    found, hessian = estimated(name, top_eigenvalues)
    wanted = float(torch.linalg.eigvalsh(hessian)[-1])
    assert found.value == pytest.approx(wanted, rel=0.03, abs=1e-6)
    assert found.settled and found.steps <= MOST_STEPS


@pytest.mark.parametrize("name", HESSIANS)
def test_the_mean_diagonal_is_that_of_the_dense_hessian(name: str) -> None:
    found, hessian = estimated(name, mean_diagonals)
    spread = float(hessian.square().sum()) ** 0.5 / len(hessian)  # of a probe, at most by 2 ** .5
    allowed = 4 * 2**0.5 * spread / found.steps**0.5
    assert found.value == pytest.approx(float(hessian.diagonal().mean()), abs=allowed + 1e-6)
    assert FEWEST_PROBES <= found.steps <= MOST_PROBES


def test_iterations_end_where_all_is_known() -> None:
    assert estimated("one large", top_eigenvalues)[0].steps == 2, "of two different eigenvalues"
    assert estimated("flat", top_eigenvalues)[0].steps == 1
    assert estimated("flat", mean_diagonals)[0].steps == FEWEST_PROBES


def test_what_has_not_settled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantize.sensitivity.MOST_STEPS", 3)
    found, _ = estimated("many close together", top_eigenvalues)
    assert (found.steps, found.settled) == (3, False)
    noisy, _ = estimated("two signs of one size", mean_diagonals)
    assert (noisy.steps, noisy.settled) == (MOST_PROBES, False), "its mean is near 0"


def test_weights_are_apart_for_eigenvalues_and_together_for_means() -> None:
    """Of a product of two weights the Hessian has parts that belong to neither."""
    weights = [torch.full((3,), 2.0, requires_grad=True), torch.ones(3, requires_grad=True)]
    loss = (weights[0] ** 2).sum() + 3 * (weights[1] ** 2).sum() + 7 * weights[0] @ weights[1]
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    tops = top_eigenvalues(gradients, weights, torch.Generator().manual_seed(0))
    assert [each.value for each in tops] == pytest.approx([2.0, 6.0], rel=CHANGE)
    means = mean_diagonals(gradients, weights, torch.Generator().manual_seed(0))
    noise = 7 / 3**0.5 / means[0].steps ** 0.5
    assert [each.value for each in means] == pytest.approx([2.0, 6.0], abs=4 * noise)
