"""Figures of a Hessian that is never written out: top eigenvalues, and means of the diagonal.

The Hessian times a direction is the gradient of the gradient's product with it: one pass through a
graph of the gradients. Each estimate has the number of such products, and whether it settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Estimate", "Estimator", "mean_diagonals", "top_eigenvalues"]

MOST_STEPS = 32
CHANGE = 0.01
"""An eigenvalue has settled where the last two steps changed it by no more than this share."""
EXHAUSTED = 1e-5
"""Of the largest eigenvalue in size: the remainder of a direction that is fully known."""
FEWEST_PROBES, MOST_PROBES = 8, 32
STANDARD_ERROR = 0.1
"""A mean has settled where its standard error is no more than this share of it."""


@dataclass(frozen=True)
class Estimate:
    """A figure of one weight's Hessian."""

    value: float
    steps: int
    """Products with the Hessian that it took."""
    settled: bool
    """False where it was still moving at the most steps allowed."""


Advance = Callable[[int], object]
"""Receives the number of weights that are done."""

Estimator = Callable[
    [Sequence[torch.Tensor], Sequence[torch.Tensor], torch.Generator, Advance], list[Estimate]
]
"""(gradients of a loss, the weights they are by, generator, advance) -> a figure of each weight's
Hessian"""


def _silent(count: int) -> None:
    """Report no progress."""


def top_eigenvalues(
    gradients: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    generator: torch.Generator,
    advance: Advance = _silent,
) -> list[Estimate]:
    """Estimate the largest eigenvalue of each weight's own Hessian, by Lanczos's iteration.

    The largest, not the largest in size: of a labelled loss the Hessian has negative eigenvalues,
    too, and power iteration would end at one of those, or between both.
    """
    estimates = []
    for gradient, weight in zip(gradients, weights, strict=True):
        estimates.append(_top_eigenvalue(gradient, weight, generator))
        advance(1)
    return estimates


def _top_eigenvalue(
    gradient: torch.Tensor, weight: torch.Tensor, generator: torch.Generator
) -> Estimate:
    """Build the Hessian's tridiagonal form in the directions that it turns a random one into.

    Old directions are not stored and come back by rounding errors: an eigenvalue is then found
    twice, which leaves the largest what it is.
    """
    direction = torch.randn(weight.shape, generator=generator)
    direction, before = direction / direction.norm(), torch.zeros_like(direction)
    diagonal: list[float] = []
    off_diagonal: list[float] = [0.0]
    tops: list[float] = []
    while len(tops) < MOST_STEPS:
        (image,) = torch.autograd.grad(gradient, weight, direction, retain_graph=True)
        image = image - off_diagonal[-1] * before
        diagonal.append(float((image * direction).sum()))
        image = image - diagonal[-1] * direction
        eigenvalues = _tridiagonal_eigenvalues(diagonal, off_diagonal[1:])
        tops.append(float(eigenvalues[-1]))
        off_diagonal.append(float(image.norm()))
        if off_diagonal[-1] <= EXHAUSTED * float(np.abs(eigenvalues).max()) or _has_settled(tops):
            return Estimate(tops[-1], len(tops), settled=True)
        before, direction = direction, image / off_diagonal[-1]
    return Estimate(tops[-1], len(tops), settled=False)


def _tridiagonal_eigenvalues(
    diagonal: Sequence[float], off_diagonal: Sequence[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the eigenvalues of a symmetric tridiagonal matrix, in ascending order."""
    matrix = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    return np.linalg.eigvalsh(matrix)


def _has_settled(values: Sequence[float]) -> bool:
    return len(values) > 2 and abs(values[-1] - values[-3]) <= CHANGE * abs(values[-1])


def mean_diagonals(
    gradients: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    generator: torch.Generator,
    advance: Advance = _silent,
) -> list[Estimate]:
    """Estimate the mean of each weight's Hessian's diagonal, by Hutchinson's random signs.

    All weights at once: the effect of one weight's signs on another's gradient has a mean of 0.
    Probes continue until all have settled, or to the most allowed.
    """
    probes: list[torch.Tensor] = []
    settled = torch.zeros(len(weights), dtype=torch.bool)
    while len(probes) < MOST_PROBES and not settled.all():
        probes.append(_probe(gradients, weights, generator))
        if len(probes) >= FEWEST_PROBES:
            drawn = torch.stack(probes)  # (probes, weights)
            error = drawn.std(dim=0) / len(probes) ** 0.5
            settled = error <= STANDARD_ERROR * drawn.mean(dim=0).abs()
    means = torch.stack(probes).mean(dim=0)
    advance(len(weights))
    return [
        Estimate(mean, len(probes), is_settled)
        for mean, is_settled in zip(means.tolist(), settled.tolist(), strict=True)
    ]


def _probe(
    gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    """Return one noisy mean of each weight's diagonal: (weights,)."""
    signs = [
        torch.randint(0, 2, weight.shape, generator=generator).float() * 2 - 1 for weight in weights
    ]
    images = torch.autograd.grad(gradients, weights, signs, retain_graph=True)
    return torch.stack([(sign * image).mean() for sign, image in zip(signs, images, strict=True)])
