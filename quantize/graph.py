"""Nodes of a graph that can be quantized, and why the others cannot."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from bertender.core.errors import ModelError

__all__ = [
    "FOUR_BIT_LOOKUP",
    "FUSED_ATTENTION",
    "PRODUCTS_OF_ATTENTION",
    "Inventory",
    "Product",
    "take_inventory",
]

PRODUCTS = ("MatMul", "Gemm")
FOUR_BIT_LOOKUP = "GatherBlockQuantized"
"""ONNX Runtime's look-up in a table of few bits."""
FUSED_ATTENTION = "QAttention"
"""ONNX Runtime's attention of 8 bits, products of query, key and value included."""
PRODUCTS_OF_ATTENTION = 3
"""Those of query, key and value."""
OF_CONSTANTS = "both sides are constants: ONNX Runtime computes it once, when the graph is opened"
REPEATED = re.compile(r"_\d+(?=\.|$)")
OF_ROWS = "it multiplies rows of a table, which are rounded with the table"
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

    def module(self, known: Container[str]) -> str:
        """Return where the product sits in the PyTorch model, as the exporter writes into names.

        Args:
            known: the paths of the model's modules; one that runs more than once has a number in
                the graph that the module has not.
        """
        path = self.node.strip("/").rpartition("/")[0].replace("/", ".")
        return path if path in known else REPEATED.sub("", path)


@dataclass(frozen=True)
class Inventory:
    """The parts of a float graph."""

    products: tuple[Product, ...]
    tables: Mapping[str, str]
    """Look-ups in float tables: node -> the table's name."""
    lstms: tuple[str, ...]
    between_activations: tuple[str, ...]
    """Products without a weight."""
    of_rows: tuple[str, ...]
    """Products of the rows that are looked up in a table, with a weight."""
    of_constants: tuple[Product, ...]
    """Products of two constants. One whose weight another product has too (a DeBERTa's keys of
    positions, with `share_att_key`) reads it as that was rounded."""

    @property
    def reasons(self) -> dict[str, str]:
        """Reasons of nodes that stay in float with every scheme."""
        return {
            **dict.fromkeys(self.between_activations, BETWEEN_ACTIVATIONS),
            **dict.fromkeys(self.of_rows, OF_ROWS),
            **{product.node: OF_CONSTANTS for product in self.of_constants},
        }


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
    computed = _computed(graph)
    products = [*_products(multiplied, floats)]
    tables = [node for node in lookups if len(floats.get(node.input[0], ())) == 2]
    rows = {node.output[0] for node in tables}
    inventory = Inventory(
        tuple(each for each in products if each.activation in computed - rows),
        {node.name: node.input[0] for node in tables},
        tuple(node.name for node in graph.node if node.op_type == "LSTM"),
        tuple(node.name for node in multiplied if node.input[1] not in floats),
        tuple(each.node for each in products if each.activation in rows),
        tuple(each for each in products if each.activation not in computed),
    )
    if not (inventory.products or inventory.lstms):
        raise ModelError(
            f"{path} has {len(multiplied)} matrix products and none of them has a constant weight: "
            "nothing would become faster. Export the model again with `bertender export`."
        )
    return inventory


def _computed(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that depend on the graph's inputs; all others are constants."""
    computed = {entry.name for entry in graph.input}
    for node in graph.node:
        if computed & set(node.input):
            computed |= set(node.output)
    return computed


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
