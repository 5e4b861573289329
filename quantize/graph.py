"""ONNX graphs: their quantizable parts, sub-graphs, and inner tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bertender.core.errors import ModelError
from bertender.models.onnx_session import LEFT_OUT, open_session

Array = npt.NDArray[Any]
Run = Callable[[Array], list[Array]]
"""values of a sub-graph's input -> its outputs"""

PRODUCTS = ("MatMul", "Gemm")
FOUR_BIT_LOOKUP = "GatherBlockQuantized"
"""ONNX Runtime's look-up in a table of few bits."""
FUSED_ATTENTION = "QAttention"
"""ONNX Runtime's 8-bit attention, including the products of query, key and value."""
FUSED_PRODUCT = "DynamicQuantizeMatMul"
"""ONNX Runtime's 8-bit product, including the rounding of its activation."""
PRODUCTS_OF_ATTENTION = 3
"""Query, key and value."""
REPEATED = re.compile(r"_\d+(?=\.|$)")
OF_CONSTANTS = "both sides are constants: ONNX Runtime computes it once, when the graph is opened"
OF_ROWS = "it multiplies rows of a table, which are rounded with the table"
BETWEEN_ACTIVATIONS = (
    "both sides are activations (attention scores and contexts), whose rounding errors multiply"
)
IN_DOUBLE = {"MatMulInteger": (0, 1), "MatMul": (0, 1), "Gemm": (0, 1, 2)}
"""Operator -> inputs to convert to float64; integers are taken without zero points."""
ROUNDS = frozenset({"DynamicQuantizeLinear", "DequantizeLinear"})
"""Operators that compute a rounded activation."""


@dataclass(frozen=True)
class Product:
    """A matrix product with a constant weight."""

    node: str
    activation: str
    """The multiplied tensor: (batch, seq, inputs), or (batch, inputs) for a pooled state."""
    weight: str
    inputs: int
    outputs: int
    transposed: bool
    """Whether the weight is stored as (outputs, inputs)."""
    is_gemm: bool
    """Whether the operator adds its bias itself."""

    def module(self, known: Container[str]) -> str:
        """Return the path of the product's module in the PyTorch model, from its name.

        Args:
            known: paths of the model's modules; a module that runs more than once gets a number in
                the graph.
        """
        path = self.node.strip("/").rpartition("/")[0].replace("/", ".")
        return path if path in known else REPEATED.sub("", path)

    def matrix(self, stored: onnx.TensorProto) -> Array:
        """Return its weight, (inputs, outputs)."""
        values = numpy_helper.to_array(stored)
        return values.T if self.transposed else values


@dataclass(frozen=True)
class Inventory:
    """The quantizable and other parts of a float graph."""

    products: tuple[Product, ...]
    tables: Mapping[str, str]
    """Look-ups in float tables: node -> the table's name."""
    lstms: tuple[str, ...]
    of_constants: tuple[Product, ...]
    """Products of two constants. If one shares its weight with another product (a DeBERTa's
    position keys, with `share_att_key`), it reads the rounded weight."""
    float_nodes: Mapping[str, str]
    """Products that remain in float in every scheme -> reason."""


def take_inventory(path: Path) -> Inventory:
    """Read the quantizable parts of a graph.

    Raises:
        ModelError: there is nothing to quantize.
    """
    graph = onnx.load(path, load_external_data=False).graph
    shapes = {
        item.name: tuple(item.dims)
        for item in graph.initializer
        if item.data_type == TensorProto.FLOAT
    }
    # tensors that depend on the graph's inputs; all others are constants
    computed = {entry.name for entry in graph.input}
    for node in graph.node:
        if computed & set(node.input):
            computed |= set(node.output)
    multiplied = [node for node in graph.node if node.op_type in PRODUCTS]
    products = []
    for node in multiplied:
        shape = shapes.get(node.input[1], ())
        if len(shape) == 2:
            transposed = any(each.name == "transB" and each.i for each in node.attribute)
            inputs, outputs = reversed(shape) if transposed else shape
            names = (node.name, node.input[0], node.input[1])
            is_gemm = node.op_type == "Gemm"
            products.append(Product(*names, inputs, outputs, transposed, is_gemm))
    tables = [
        node
        for node in graph.node
        if node.op_type == "Gather" and len(shapes.get(node.input[0], ())) == 2
    ]
    rows = {node.output[0] for node in tables}
    of_constants = tuple(each for each in products if each.activation not in computed)
    float_nodes = {
        **{node.name: BETWEEN_ACTIVATIONS for node in multiplied if node.input[1] not in shapes},
        **{each.node: OF_ROWS for each in products if each.activation in rows},
        **{each.node: OF_CONSTANTS for each in of_constants},
    }
    inventory = Inventory(
        tuple(each for each in products if each.activation in computed - rows),
        {node.name: node.input[0] for node in tables},
        tuple(node.name for node in graph.node if node.op_type == "LSTM"),
        of_constants,
        float_nodes,
    )
    if not (inventory.products or inventory.lstms):
        raise ModelError(
            f"{path} has {len(multiplied)} matrix products and none of them has a constant weight: "
            "nothing would become faster. Export the model again with `bertender export`."
        )
    return inventory


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return a graph's constants by name."""
    return {each.name: each for each in model.graph.initializer}


def makers_of(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Return the nodes of a graph by their outputs."""
    return {name: node for node in model.graph.node for name in node.output}


def replace_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of a graph, in place and in order."""
    made = list(nodes)
    del model.graph.node[:]
    model.graph.node.extend(made)


def nodes_between(
    model: onnx.ModelProto, starts: Sequence[str], ends: Sequence[str]
) -> list[onnx.NodeProto]:
    """Return the nodes that compute `ends` from `starts` and constants, in order.

    Raises:
        ModelError: an end depends on other inputs than `starts`.
    """
    nodes = model.graph.node
    makers = {name: place for place, node in enumerate(nodes) for name in node.output}
    seen = {*starts, "", *(item.name for item in model.graph.initializer)}
    places, wanted = set[int](), [*ends]
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in makers:
            raise ModelError(
                f"{', '.join(ends)} cannot be computed from {', '.join(starts)} alone: {name!r} is "
                "an input too. Quantize the graph of a `bertender export` again."
            )
        places.add(makers[name])
        wanted += nodes[makers[name]].input
    return [nodes[place] for place in sorted(places)]


def subgraph(
    model: onnx.ModelProto, start: str, ends: Sequence[str], shape: Sequence[Any], kind: int
) -> onnx.ModelProto:
    """Return the part of a graph that computes `ends` from `start` and constants.

    ONNX Runtime fuses it like the whole graph, so that a product runs on chosen inputs in the
    kernels that serve it.

    Args:
        model: whole graph, with its weights in memory.
        start: tensor that becomes the input.
        ends: tensors that become the outputs.
        shape: shape of `start`; names are dynamic axes.
        kind: its element type in TensorProto.

    Raises:
        ModelError: an end depends on other inputs than `start`.
    """
    constants = constants_of(model)
    nodes = nodes_between(model, [start], ends)
    read = {name for node in nodes for name in node.input} - {start}
    graph = helper.make_graph(
        nodes,
        "subgraph",
        [helper.make_tensor_value_info(start, kind, shape)],
        [onnx.ValueInfoProto(name=name) for name in ends],
        [constants[name] for name in sorted(read & constants.keys())],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def open_subgraph(part: onnx.ModelProto, *, optimize: bool = True) -> Run:
    """Open a sub-graph with ONNX Runtime on this CPU, to run it more than once.

    Returns:
        A function from input values to outputs. It raises ModelError if the graph fails on them,
        for example in a look-up beyond the end of a table.
    """
    start = part.graph.input[0].name
    session = open_session(part.SerializeToString(), left_out=LEFT_OUT if optimize else None)

    def run(values: Array) -> list[Array]:
        try:
            return list(session.run(None, {start: values}))
        except Exception as error:  # its exceptions share no public base class
            raise ModelError(
                f"the graph behind {start!r} cannot be run on {values.shape[0]} rows: {error}. The "
                "graph is damaged there: export and quantize it again."
            ) from None

    return run


def run_subgraph(part: onnx.ModelProto, values: Array, *, optimize: bool = True) -> list[Array]:
    """Return a sub-graph's outputs for some values of its input; see `open_subgraph`."""
    return open_subgraph(part, optimize=optimize)(values)


def rounded_activation(part: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a sub-graph that computes the rounded input of integer products.

    None if its products have no rounded input. Run it without optimization.
    """
    makers = makers_of(part)
    for product in (node for node in part.graph.node if node.op_type in IN_DOUBLE):
        maker = makers.get(product.input[0])
        if maker is not None and maker.op_type in ROUNDS:
            made = onnx.ModelProto()
            made.CopyFrom(part)
            end = product.input[0]
            if maker.op_type == "DynamicQuantizeLinear":
                end = "rounded"
                made.graph.node.append(
                    helper.make_node("DequantizeLinear", list(maker.output), [end])
                )
            del made.graph.output[:]
            made.graph.output.append(onnx.ValueInfoProto(name=end))
            return made
    return None


def static_activation(part: onnx.ModelProto) -> tuple[float, str] | None:
    """Return scale and integer type of a sub-graph's QuantizeLinear, if it has one."""
    constants = constants_of(part)
    for node in part.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:])
            return float(scale), zero.dtype.name
    return None


def in_float64(part: onnx.ModelProto) -> onnx.ModelProto:
    """Return a sub-graph whose products are computed in float64, where sums of integers are exact.

    Run it without optimization, which would fuse it into integer products again.
    """
    made = onnx.ModelProto()
    made.CopyFrom(part)
    replace_nodes(
        made,
        (
            each
            for node in part.graph.node
            for each in (_product_in_float64(node) if node.op_type in IN_DOUBLE else (node,))
        ),
    )
    return made


def _product_in_float64(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    integers = node.op_type == "MatMulInteger"
    operands = []
    for place in IN_DOUBLE[node.op_type][: len(node.input)]:
        wide = f"{node.name}/wide{place}"
        yield helper.make_node("Cast", [node.input[place]], [wide], to=TensorProto.DOUBLE)
        if integers:  # the zero point is subtracted
            zero, centred = f"{wide}/zero", f"{wide}/centred"
            yield helper.make_node("Cast", [node.input[place + 2]], [zero], to=TensorProto.DOUBLE)
            yield helper.make_node("Sub", [wide, zero], [centred])
            wide = centred
        operands.append(wide)
    operator = "MatMul" if integers else node.op_type
    product = helper.make_node(operator, operands, [f"{node.name}/exact"])
    product.attribute.extend(node.attribute)
    yield product
    kind = TensorProto.INT32 if integers else TensorProto.FLOAT
    yield helper.make_node("Cast", [f"{node.name}/exact"], list(node.output), to=kind)


def open_watched(graph: Path, tensors: Iterable[str], folder: Path) -> onnxruntime.InferenceSession:
    """Open a graph, copied into a folder, with some inner tensors added to its outputs."""
    model = onnx.load(graph)
    outputs = {output.name for output in model.graph.output}
    for name in tensors:
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    onnx.save(model, folder / "watched.onnx", save_as_external_data=True)  # for more than 2 GB too
    return open_session(folder / "watched.onnx")
