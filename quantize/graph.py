"""What of a graph can be quantized, and why the rest cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from bertender.core.errors import ModelError

__all__ = ["Inventory", "Product", "take_inventory"]

PRODUCTS = ("MatMul", "Gemm")
BETWEEN_ACTIVATIONS = (
    "both sides are activations (attention scores and contexts), whose rounding errors multiply"
)


@dataclass(frozen=True)
class Product:
    """A matrix product with a constant weight."""

    node: str
    activation: str
    """The tensor that is multiplied: (batch, seq, inputs), or (batch, inputs) of a pooled state."""
    weight: str
    inputs: int
    outputs: int
    transposed: bool
    """The weight is stored as (outputs, inputs)."""
    is_gemm: bool
    """It adds its bias itself."""

    @property
    def module(self) -> str:
        """Where the product sits in the PyTorch model, as the exporter writes it into names."""
        return self.node.strip("/").rpartition("/")[0].replace("/", ".")


@dataclass(frozen=True)
class Inventory:
    """The parts of a float graph."""

    products: tuple[Product, ...]
    tables: Mapping[str, str]
    """Look-ups in float tables: node -> the table's name."""
    lstms: tuple[str, ...]
    between_activations: tuple[str, ...]
    """Products without a weight."""

    @property
    def reasons(self) -> dict[str, str]:
        """Why a node stays in float whatever the scheme is."""
        return dict.fromkeys(self.between_activations, BETWEEN_ACTIVATIONS)


def take_inventory(path: Path) -> Inventory:
    """Read what a graph is made of.

    Raises:
        ModelError: there is nothing to quantize.
    """
    graph = onnx.load(path, load_external_data=False).graph
    floats = {
        item.name: tuple(item.dims)
        for item in graph.initializer
        if item.data_type == TensorProto.FLOAT
    }
    multiplied = [node for node in graph.node if node.op_type in PRODUCTS]
    lookups = [node for node in graph.node if node.op_type == "Gather"]
    inventory = Inventory(
        tuple(_products(multiplied, floats)),
        {node.name: node.input[0] for node in lookups if len(floats.get(node.input[0], ())) == 2},
        tuple(node.name for node in graph.node if node.op_type == "LSTM"),
        tuple(node.name for node in multiplied if node.input[1] not in floats),
    )
    if not (inventory.products or inventory.lstms):
        raise ModelError(
            f"{path} has {len(multiplied)} matrix products and none of them has a constant weight: "
            "nothing would become faster. Export the model again with `bertender export`."
        )
    return inventory


def _products(
    nodes: list[onnx.NodeProto], floats: Mapping[str, tuple[int, ...]]
) -> Iterator[Product]:
    for node in nodes:
        shape = floats.get(node.input[1], ())
        if len(shape) == 2:
            transposed = any(each.name == "transB" and each.i for each in node.attribute)
            inputs, outputs = reversed(shape) if transposed else shape
            yield Product(
                node.name,
                node.input[0],
                node.input[1],
                inputs,
                outputs,
                transposed,
                node.op_type == "Gemm",
            )
