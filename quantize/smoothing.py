"""Smoothing: move outlier channels of activations into the weights, before both are rounded.

Xiao et al. 2023 (SmoothQuant, arXiv 2211.10438, eqs. 3 and 4):

    X W = (X / s) (s W)        s_j = max|X_j|^strength / max|W_j|^(1 - strength)

An activation has one scale for all channels: if a few are a hundred times as large as the others,
these have few steps left. A weight has a scale for each output, and room for the factors.

Departures: the strength is chosen for each activation, as the one in STRENGTHS whose outputs on
sampled tokens have the least noise, with ranges without clipping and weights rounded to the
nearest. An activation that gains less than LEAST_GAIN_DB is unchanged. No channel gets a factor
below the median: one that was quiet on the calibration texts, but is loud elsewhere, would take all
steps. The factors are a separate multiplication: the norms that they could be folded into are also
read by the residual connections. Pooled activations are left out: between the products of a head, a
multiplication keeps ONNX Runtime from running the first one in integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from bertender.core.errors import GateError, ModelError
from bertender.core.progress import track
from bertender.models.graphs import save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME
from quantize.context import ROWS, QuantizationContext, observed, observed_rows, spaced
from quantize.graph import Product, constants_of, replace_nodes, take_inventory
from quantize.integers import INTEGERS, affine, weight_scales

Array = npt.NDArray[np.floating[Any]]
Factors = Mapping[str, Array]
"""Activation -> divisor of each of its channels: (inputs,)."""

STRENGTHS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LEAST_GAIN_DB = 6.0
"""Smallest reduction of noise that is worth a multiplication: one bit."""
MOST_ROWS = 4 * ROWS
"""Tokens to hold while reading texts."""
COMPARED_TEXTS = 16
TOLERATED = 1e-3
"""Largest difference of the smoothed graph's outputs, relative to the largest output."""
LARGEST_FACTOR = 1e3
TINY = 1e-20
"""Replaces a noise of 0."""
QUIETEST = 1e-6
"""Smallest size of a channel, relative to the loudest."""
INVERSE = "_inverse_factors"
SMOOTHED = "_smoothed"


@dataclass(frozen=True)
class Group:
    """Products with common factors: they read the same activation, or share a weight."""

    products: tuple[Product, ...]

    @property
    def activations(self) -> list[str]:
        return list(dict.fromkeys(each.activation for each in self.products))

    def products_of(self, activation: str) -> Iterator[Product]:
        yield from (each for each in self.products if each.activation == activation)


@dataclass(frozen=True)
class Observed:
    """An activation on real text."""

    low: Array
    """The smallest value of each channel: (inputs,)."""
    high: Array
    """The largest value of each channel: (inputs,)."""
    rows: Array
    """Some tokens: (rows, inputs)."""


@dataclass(frozen=True)
class Smoothing:
    """The factors for a graph's activations."""

    factors: Factors
    gains_db: Mapping[str, float]
    """Activation -> reduction of noise in its products."""


def choose_smoothing(context: QuantizationContext) -> Smoothing:
    """Return the factors for the activations that gain from them."""
    model = onnx.load(context.graph)
    groups = groups_of(context.inventory.products, model)
    seen = observe(context, groups)
    weights = constants_of(model)
    highest = INTEGERS[context.target.weights].highest
    factors, gains = dict[str, Array](), dict[str, float]()
    for group in track(groups, "smooth", len(groups)):
        found, gain_db = choose_factors(group, seen, weights, highest)
        if gain_db >= LEAST_GAIN_DB:
            factors |= dict.fromkeys(group.activations, found)
            gains |= dict.fromkeys(group.activations, gain_db)
    return Smoothing(factors, gains)


def smoothed(context: QuantizationContext, smoothing: Smoothing) -> QuantizationContext:
    """Return a context with a smoothed float graph; the same context if there are no factors.

    Raises:
        GateError: the graph's outputs changed.
    """
    if not smoothing.factors:
        return context
    graph = write_smoothed(context.graph, smoothing.factors, context.folder)
    check_same(context, graph)
    return replace(context, graph=graph, smoothing_db=smoothing.gains_db)


def check_same(context: QuantizationContext, graph: Path) -> None:
    """Raise GateError if a graph's outputs on some texts differ from the float graph's."""
    names = [each.name for each in onnx.load(graph, load_external_data=False).graph.output]
    texts = context.texts(COMPARED_TEXTS, "compare")
    pairs = zip(*(observed(each, names, texts) for each in (context.graph, graph)), strict=True)
    for before, after in pairs:
        for name in names:
            size = np.abs(before[name]).max()
            if not np.abs(after[name] - before[name]).max() <= TOLERATED * size:
                raise GateError(
                    f"{name} of the graph with scaled channels differs from the float graph by "
                    f"more than {TOLERATED:g} of the largest. Export the model again."
                )


def smoothed_like(float_graph: Path, quantized_graph: Path, folder: Path) -> Path:
    """Return the float graph with the factors of a quantized one: the same file, or a new one.

    Raises:
        ModelError: factors are not positive numbers, or do not fit this graph.
    """
    factors = factors_in(quantized_graph)
    inputs = {each.activation: each.inputs for each in take_inventory(float_graph).products}
    for name, found in factors.items():
        if found.shape != (inputs.get(name),) or not (np.isfinite(found) & (found > 0)).all():
            raise ModelError(
                f"the factors of {name!r} in {quantized_graph} are damaged, or of another float "
                "graph. Quantize the float graph again."
            )
    return write_smoothed(float_graph, factors, folder) if factors else float_graph


def groups_of(products: Sequence[Product], model: onnx.ModelProto) -> list[Group]:
    """Return the groups of products over tokens whose weights have no other readers in the
    graph."""
    products = [each for each in products if not each.is_gemm]
    merged: list[tuple[Product, ...]] = []
    for product in products:
        alike = [
            each
            for each in merged
            if any(
                product.activation == one.activation or product.weight == one.weight for one in each
            )
        ]
        merged = [each for each in merged if each not in alike]
        merged.append((*chain(*alike), product))
    readers = Counter(name for node in model.graph.node for name in node.input)
    own = Counter(product.weight for product in products)
    return [
        Group(each)
        for each in merged
        if all(own[one.weight] == readers[one.weight] for one in each)
    ]


def observe(context: QuantizationContext, groups: Sequence[Group]) -> dict[str, Observed]:
    """Return the activations of groups on training texts, by tensor name."""
    seen: dict[str, Observed] = {}
    for name, rows in observed_rows(context, [*chain(*(group.products for group in groups))]):
        low, high, some = rows.min(axis=0), rows.max(axis=0), spaced(rows)
        if before := seen.get(name):
            low, high = np.minimum(low, before.low), np.maximum(high, before.high)
            some = np.concatenate([before.rows, some])
            some = some[::2] if len(some) > MOST_ROWS else some
        seen[name] = Observed(low, high, some)
    return {name: replace(each, rows=spaced(each.rows)) for name, each in seen.items()}


def choose_factors(
    group: Group,
    seen: Mapping[str, Observed],
    weights: Mapping[str, onnx.TensorProto],
    highest: int,
) -> tuple[Array, float]:
    """Return the factors for a group with the least noise, and the reduction in decibels.

    Args:
        group: group of products.
        seen: their activations.
        weights: constants of the graph.
        highest: largest integer of a weight.
    """
    loudest = np.maximum.reduce(
        [np.maximum(np.abs(seen[name].low), np.abs(seen[name].high)) for name in group.activations]
    )
    none = np.ones_like(loudest)
    # a range shrinks at most to that of the median channel
    enough = np.median(loudest) * 10 ** (LEAST_GAIN_DB / 20)
    if not np.isfinite(loudest).all() or loudest.max() <= enough:  # the gates report NaN
        return none, 0.0
    columns = {each.weight: each.matrix(weights[each.weight]) for each in group.products}

    def noise(factors: Array) -> float:
        """Return the squared error of the outputs of all products."""
        rounded = {
            name: _rounded_weight(matrix * factors[:, None], highest)
            for name, matrix in columns.items()
        }
        lost = 0.0
        for activation in group.activations:
            on = seen[activation]
            low, high = float((on.low / factors).min()), float((on.high / factors).max())
            scale = affine(low, high, INTEGERS["uint8"])
            rows = scale.rounded(on.rows / factors).astype(np.float32)
            for product in group.products_of(activation):
                wanted = on.rows @ columns[product.weight]
                lost += float(np.square(rows @ rounded[product.weight] - wanted).sum())
        return lost

    heaviest = np.maximum.reduce([np.abs(matrix).max(axis=1) for matrix in columns.values()])
    if not 0 < heaviest.max() < np.inf:
        return none, 0.0
    tried = [_factors(loudest, heaviest, strength) for strength in STRENGTHS]
    lost = [noise(factors) for factors in tried]
    best = int(np.argmin(lost))
    return tried[best], 10 * float(np.log10(noise(none) / max(lost[best], TINY)))


def _factors(loudest: Array, heaviest: Array, strength: float) -> Array:
    """Return the factor of each channel, by the largest values of activations and weights."""
    loud = np.maximum(loudest, QUIETEST * loudest.max())
    heavy = np.maximum(heaviest, QUIETEST * heaviest.max())
    factors = loud**strength / heavy ** (1 - strength)
    median = np.median(factors[loudest > QUIETEST * loudest.max()])  # over audible channels
    return np.asarray(np.clip(factors / median, 1, LARGEST_FACTOR), dtype=np.float32)


def _rounded_weight(weight: Array, highest: int) -> Array:
    scales = weight_scales(weight, highest)
    return np.asarray(np.rint(weight / scales) * scales, dtype=np.float32)


def write_smoothed(graph: Path, factors: Factors, folder: Path) -> Path:
    """Write a float graph with divided activations and multiplied weights.

    Args:
        graph: a float graph.
        factors: factors for its products' activations.
        folder: parent of the new file's own folder; a large graph has a second file beside it.
    """
    model = onnx.load(graph)
    constants, done = constants_of(model), set[str]()
    readers = dict[str, str]()
    for product in take_inventory(graph).products:
        if product.activation not in factors:
            continue
        readers[product.node] = product.activation
        if product.weight not in done:  # two products may share it
            done.add(product.weight)
            weight = numpy_helper.to_array(constants[product.weight])
            own = factors[product.activation]
            scaled = weight * (own if product.transposed else own[:, None])
            constants[product.weight].CopyFrom(
                numpy_helper.from_array(scaled.astype(weight.dtype), product.weight)
            )
    nodes, divided = list[onnx.NodeProto](), set[str]()
    for node in model.graph.node:
        if activation := readers.get(node.name):
            name = f"{activation}{SMOOTHED}"
            if activation not in divided:
                divided.add(activation)
                inverse = np.asarray(1 / factors[activation], dtype=np.float32)
                constant = numpy_helper.from_array(inverse, f"{activation}{INVERSE}")
                model.graph.initializer.append(constant)
                inputs = [activation, constant.name]
                nodes.append(helper.make_node("Mul", inputs, [name], name=f"{name}_product"))
            node.input[0] = name
        nodes.append(node)
    replace_nodes(model, nodes)
    path = folder / "smoothed" / ONNX_NAME
    path.parent.mkdir()
    save_graph(model, path, MOST_MB)
    return path


def factors_in(graph: Path) -> dict[str, Array]:
    """Return the divisors of a graph's activations."""
    return {
        name.removesuffix(INVERSE): 1 / numpy_helper.to_array(constant)
        for name, constant in constants_of(onnx.load(graph)).items()
        if name.endswith(INVERSE)
    }
