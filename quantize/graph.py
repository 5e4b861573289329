"""Graphs: what of them can be quantized, sub-graphs cut out of them, and their inner tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bertender.core.errors import ModelError
from bertender.models.onnx_session import LEFT_OUT, open_session

# --- from quantize.graph
# Nodes of a graph that can be quantized, and why the others cannot.

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


# --- from quantize.cuts
# Little graphs, cut out of a large one: from one tensor to what is computed of it alone.
#
# ONNX Runtime fuses a cut as it fuses the whole, so that a product can be run by the kernels that
# will serve it, on inputs of one's choice. `exact` is the same cut without these kernels.

Array = npt.NDArray[Any]
RunCut = Callable[[Array], list[Array]]
IN_DOUBLE = {"MatMulInteger": (0, 1), "MatMul": (0, 1), "Gemm": (0, 1, 2)}
"""Operator -> the inputs that become float64. Integer ones have their zero points taken off."""
ROUNDS = frozenset({"DynamicQuantizeLinear", "DequantizeLinear"})
"""Operators that compute a rounded activation."""


def cut_out(
    model: onnx.ModelProto, start: str, ends: Sequence[str], shape: Sequence[Any], kind: int
) -> onnx.ModelProto:
    """Return the part of a graph that computes `ends` from `start` and constants.

    Args:
        model: a whole graph, its weights in memory.
        start: the tensor that becomes the cut's input.
        ends: the tensors that become its outputs.
        shape: of `start`; names stand for what varies.
        kind: its element type, of TensorProto.

    Raises:
        ModelError: an end depends on more than `start`.
    """
    constants = {item.name: item for item in model.graph.initializer}
    nodes = nodes_between(model, [start], [*ends])
    read = {name for node in nodes for name in node.input} - {start}
    graph = helper.make_graph(
        nodes,
        "cut",
        [helper.make_tensor_value_info(start, kind, shape)],
        [onnx.ValueInfoProto(name=name) for name in ends],
        [constants[name] for name in sorted(read & constants.keys())],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def nodes_between(
    model: onnx.ModelProto, starts: list[str], ends: list[str]
) -> list[onnx.NodeProto]:
    """Return the nodes that compute `ends` from `starts` and constants, in order; see cut_out."""
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
                "read too. Quantize the graph of a `bertender export` again."
            )
        places.add(makers[name])
        wanted += nodes[makers[name]].input
    return [nodes[place] for place in sorted(places)]


def run_cut(cut: onnx.ModelProto, values: Array, *, optimize: bool = True) -> list[Array]:
    """Return a cut's outputs for some values of its input; see `open_cut`."""
    return open_cut(cut, optimize=optimize)(values)


def open_cut(cut: onnx.ModelProto, *, optimize: bool = True) -> RunCut:
    """Open a cut with ONNX Runtime on this CPU, to run it more than once.

    Returns:
        The function from values of the cut's input to its outputs. It raises ModelError where it
        cannot be run on them, as where a table is looked up beyond its end.
    """
    start = cut.graph.input[0].name
    session = open_session(cut.SerializeToString(), left_out=LEFT_OUT if optimize else None)

    def run(values: Array) -> list[Array]:
        try:
            return list(session.run(None, {start: values}))
        except Exception as error:  # its exception classes share no public base
            raise ModelError(
                f"what is computed from {start!r} alone cannot be run on {values.shape[0]} rows: "
                f"{error}. The graph is damaged there: export and quantize it again."
            ) from None

    return run


def rounded_activation(cut: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a cut that computes what rounding leaves of its input before integer products.

    None where none of its products rounds it. To be run without optimization.
    """
    made = onnx.ModelProto()
    made.CopyFrom(cut)
    makers = {name: node for node in cut.graph.node for name in node.output}
    for product in (node for node in cut.graph.node if node.op_type in IN_DOUBLE):
        maker = makers.get(product.input[0])
        if maker is not None and maker.op_type in ROUNDS:
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


def static_activation(cut: onnx.ModelProto) -> tuple[float, str] | None:
    """Return the scale of a cut's QuantizeLinear, and its type of integers; None without one."""
    constants = {item.name: item for item in cut.graph.initializer}
    for node in cut.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, zero = (numpy_helper.to_array(constants[name]) for name in node.input[1:])
            return float(scale), zero.dtype.name
    return None


def exact(cut: onnx.ModelProto) -> onnx.ModelProto:
    """Return a cut whose products are computed in float64, where sums of integers are exact.

    To be run without optimization, which would fuse what remains into products of integers.
    """
    made = onnx.ModelProto()
    made.CopyFrom(cut)
    del made.graph.node[:]
    made.graph.node.extend(each for node in cut.graph.node for each in _exact(node))
    return made


def _exact(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    if node.op_type not in IN_DOUBLE:
        yield node
        return
    integers = node.op_type == "MatMulInteger"
    wide = []
    for place in IN_DOUBLE[node.op_type][: len(node.input)]:
        name = f"{node.name}/wide{place}"
        wide.append(name)
        yield helper.make_node("Cast", [node.input[place]], [name], to=TensorProto.DOUBLE)
        if integers:
            yield from _centred(name, node.input[place + 2])
            wide[-1] = f"{name}/centred"
    operator = "MatMul" if integers else node.op_type
    product = helper.make_node(operator, wide, [f"{node.name}/exact"])
    product.attribute.extend(node.attribute)
    yield product
    kind = TensorProto.INT32 if integers else TensorProto.FLOAT
    yield helper.make_node("Cast", [f"{node.name}/exact"], list(node.output), to=kind)


def _centred(wide: str, zero_point: str) -> Iterator[onnx.NodeProto]:
    """Take the zero point off integers that are float64 already."""
    yield helper.make_node("Cast", [zero_point], [f"{wide}/zero"], to=TensorProto.DOUBLE)
    yield helper.make_node("Sub", [wide, f"{wide}/zero"], [f"{wide}/centred"])


# --- from quantize.inner_tensors
# Inner tensors of a graph: read while it runs, or handed to another one.

TOLERATED = 1e-5
"""Of `relative_difference`, where nothing was rounded. Between two products of a 6 x 384 encoder
sums in another order differ by 3e-7 at most."""


@dataclass(frozen=True)
class TensorDifference:
    """A tensor of a quantized graph, and how far it is from what it should be."""

    tensor: str
    difference: float
    """Root mean square, relative; the largest of the batches."""

    @property
    def is_tolerated(self) -> bool:
        return self.difference <= TOLERATED


def largest(differences: Iterable[tuple[str, float]]) -> tuple[TensorDifference, ...]:
    """Return the largest difference of each tensor; one that is not a number stays so."""
    worst: dict[str, float] = {}
    for name, difference in differences:
        worst[name] = float(np.maximum(worst.get(name, 0.0), difference))
    return tuple(TensorDifference(name, difference) for name, difference in worst.items())


def open_watched(graph: Path, tensors: Iterable[str], folder: Path) -> onnxruntime.InferenceSession:
    """Open a graph, copied into a folder, with some of its inner tensors among its outputs."""
    model = onnx.load(graph)
    outputs = {output.name for output in model.graph.output}
    for name in tensors:
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    onnx.save(model, folder / "watched.onnx", save_as_external_data=True)  # above 2 GB, too
    return open_session(folder / "watched.onnx")


def run_with(session: Any, known: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    """Return some tensors of a graph by name, with all that is known already."""
    asked = [name for name in dict.fromkeys(names) if name not in known]
    inputs = {node.name: known[node.name] for node in session.get_inputs()}
    return {**known, **dict(zip(asked, session.run(asked, inputs), strict=True))}


def relative_difference(actual: Array, wanted: Array) -> float:
    """Return the root mean square of the differences over that of the values."""
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    size = float(np.sqrt(np.square(wanted).mean()))
    return float(np.sqrt(np.square(actual - wanted).mean())) / (size or 1.0)
