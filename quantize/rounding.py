"""Rounding weights so that errors cancel on real texts, instead of each to the nearest integer.

Frantar et al. 2023 (GPTQ, arXiv 2210.17323, algorithm 1): the inputs of a product are rounded one
after the other, and the rounding error of each is compensated in the following ones, as far as
their activations are correlated:

    minimise tr((W - Q)^T H (W - Q)),    H = X^T X of the activations X (tokens, inputs)

The scales are those of rounding to the nearest, so that graphs have the same form and speed.
Departures: inputs are ordered by the size of their activations (`act_order` in the authors' code),
H has a larger share of the identity if the texts have fewer tokens than the product has inputs, and
the weights of inputs that are always 0 are rounded to the nearest integers, not to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from scipy.linalg import cholesky

from bertender.core.progress import track
from quantize.context import QuantizationContext, observed_rows
from quantize.graph import Product, constants_of
from quantize.integers import INTEGERS, Integers8, WeightScales, nearest, weight_scales

FloatArray = npt.NDArray[np.floating[Any]]
BLOCK = 128
"""Inputs whose errors are compensated in the later ones at once."""
DAMPING = 0.01
"""Share of the mean diagonal to add to H, so that it can be inverted."""


@dataclass(frozen=True)
class GramMatrix:
    """Second moments of the channels of an activation on real text."""

    gram: FloatArray
    """X^T X: (inputs, inputs)."""
    tokens: int
    """Number of rows of X."""

    def __add__(self, other: GramMatrix) -> GramMatrix:
        return GramMatrix(self.gram + other.gram, self.tokens + other.tokens)


def round_weights(context: QuantizationContext) -> dict[str, Integers8]:
    """Return the integers of all products' weights, by weight name: (inputs, outputs)."""
    weights = constants_of(onnx.load(context.graph))
    highest = INTEGERS[context.target.weights].highest
    readers: dict[str, list[Product]] = {}
    for product in context.inventory.products:
        readers.setdefault(product.weight, []).append(product)
    grams = gram_matrices(context, context.inventory.products)
    # query, key and value read one activation, whose matrix is inverted once
    by_activations: dict[tuple[str, ...], list[str]] = {}
    for name, products in readers.items():
        activations = tuple(dict.fromkeys(each.activation for each in products))
        by_activations.setdefault(activations, []).append(name)
    integers = {}
    for activations, names in track(by_activations.items(), "round weights", len(by_activations)):
        first, *more = (grams[each] for each in activations)
        compensation = Compensation(sum(more, first))
        for name in names:
            columns = readers[name][0].matrix(weights[name])
            scales = weight_scales(columns, highest)
            integers[name] = compensation.rounded(columns, scales, highest)
    return integers


def gram_matrices(
    context: QuantizationContext, products: Sequence[Product]
) -> dict[str, GramMatrix]:
    """Return the Gram matrices of products' activations on training texts, by tensor name."""
    found: dict[str, GramMatrix] = {}
    for name, rows in observed_rows(context, products):
        seen = GramMatrix(rows.T @ rows, len(rows))
        found[name] = found[name] + seen if name in found else seen
    return found


class Compensation:
    """Rounds weights that multiply the same activation.

    Args:
        seen: Gram matrix of the activation on real text.
    """

    def __init__(self, seen: GramMatrix) -> None:
        diagonal = np.diag(seen.gram).astype(np.float64)
        self.order = np.argsort(-diagonal, kind="stable")
        self.factor: FloatArray | None = None
        """Upper Cholesky factor of the inverse of H; None without any activations."""
        if np.isfinite(seen.gram).all() and diagonal.any():
            damped = seen.gram[np.ix_(self.order, self.order)].astype(np.float64)
            share = DAMPING * max(1.0, len(diagonal) / seen.tokens)
            damped[np.diag_indices(len(diagonal))] += share * diagonal.mean()
            self.factor = cholesky(np.linalg.inv(damped))

    def rounded(self, weight: FloatArray, scales: WeightScales, highest: int) -> Integers8:
        """Return the integers of a weight.

        Args:
            weight: (inputs, outputs).
            scales: step of each output, (outputs,).
            highest: largest absolute integer.

        Returns:
            (inputs, outputs)
        """
        if self.factor is None:
            return nearest(weight / scales, highest)
        (inputs, outputs), factor = weight.shape, self.factor
        left = weight[self.order].astype(np.float64)
        made = np.empty((inputs, outputs), dtype=np.int8)
        for start in range(0, inputs, BLOCK):
            end = min(start + BLOCK, inputs)
            lost = np.empty((end - start, outputs))
            for place in range(start, end):
                made[self.order[place]] = integers = nearest(left[place] / scales, highest)
                own = (left[place] - integers * scales) / factor[place, place]
                left[place + 1 : end] -= np.outer(factor[place, place + 1 : end], own)
                lost[place - start] = own
            left[end:] -= factor[start:end, end:].T @ lost
        return made
