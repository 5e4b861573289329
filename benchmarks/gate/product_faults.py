"""Faults of one quantized product, planted in a graph that a scheme has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bertender.models.graphs import save_graph
from bertender.models.onnx_session import MOST_MB
from quantize.graph import Product

Constants = Mapping[str, onnx.TensorProto]
PlantProduct = Callable[[onnx.ModelProto, Constants, Product, Product], None]
"""(graph, its constants, the product, another of the same shape)"""


def planted(
    graph: Path, plant: PlantProduct, product: Product, other: Product, target: Path
) -> Path:
    """Write a graph with a fault at `target`."""
    model = onnx.load(graph)
    constants = {item.name: item for item in model.graph.initializer}
    plant(model, constants, product, other)
    save_graph(model, target, MOST_MB)
    return target


def change(constants: Constants, name: str, function: Callable[[Any], Any]) -> None:
    before = numpy_helper.to_array(constants[name])
    after = np.asarray(function(before)).astype(before.dtype)
    constants[name].CopyFrom(numpy_helper.from_array(after, name))


def exchange(constants: Constants, first: str, second: str) -> None:
    values = [numpy_helper.to_array(constants[name]) for name in (first, second)]
    change(constants, first, lambda _: values[1])
    change(constants, second, lambda _: values[0])


def weight_scale(factor: float) -> PlantProduct:
    return lambda model, constants, product, other: change(
        constants, f"{product.weight}_scale", lambda scale: scale * factor
    )


def weight_zero_point(
    model: onnx.ModelProto, constants: Constants, product: Product, other: Product
) -> None:
    change(constants, f"{product.weight}_zero_point", lambda zero: zero + 8)


def zeroed(model: onnx.ModelProto, constants: Constants, product: Product, other: Product) -> None:
    change(constants, f"{product.weight}_quantized", np.zeros_like)


def swapped(model: onnx.ModelProto, constants: Constants, product: Product, other: Product) -> None:
    for suffix in ("quantized", "scale"):
        exchange(constants, *(f"{each.weight}_{suffix}" for each in (product, other)))


def halved_activation_scale(
    model: onnx.ModelProto, constants: Constants, product: Product, other: Product
) -> None:
    """Clip the outer halves of the range."""
    change(constants, f"{product.activation}_scale", lambda scale: scale / 2)


def activation_zero_point(
    model: onnx.ModelProto, constants: Constants, product: Product, other: Product
) -> None:
    """Other integers stand for 0 when they are read than when they were written."""
    name = f"{product.activation}_zero_point"
    wrong = numpy_helper.to_array(constants[name])
    wrong = np.asarray(wrong + 8 if wrong < 200 else wrong - 8).astype(wrong.dtype)
    model.graph.initializer.append(numpy_helper.from_array(wrong, f"{name}_wrong"))
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and name in node.input:
            node.input[2] = f"{name}_wrong"


EVERYWHERE = ("dynamic", "static")
FAULTS: Mapping[str, tuple[PlantProduct, tuple[str, ...]]] = {
    "weight scale x1.1": (weight_scale(1.1), EVERYWHERE),
    "weight scale x1.5": (weight_scale(1.5), EVERYWHERE),
    "weight scale x2": (weight_scale(2.0), EVERYWHERE),
    "weight scale /2": (weight_scale(0.5), EVERYWHERE),
    "weight zero point off by 8": (weight_zero_point, EVERYWHERE),
    "weights zeroed": (zeroed, EVERYWHERE),
    "weights of two layers swapped": (swapped, EVERYWHERE),
    "activation scale /2": (halved_activation_scale, ("static",)),
    "activation zero point off by 8": (activation_zero_point, ("static",)),
}
"""Fault -> how it is planted, and in graphs of which schemes."""
