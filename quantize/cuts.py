"""Little graphs, cut out of a large one: from one tensor to what is computed of it alone.

ONNX Runtime fuses a cut as it fuses the whole, so that a product can be run by the kernels that
will serve it, on inputs of one's choice. `exact` is the same cut without these kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertender.core.errors import ModelError
from bertender.models.onnx_session import LEFT_OUT, open_session

__all__ = [
    "RunCut",
    "cut_out",
    "exact",
    "nodes_between",
    "open_cut",
    "rounded_activation",
    "run_cut",
    "static_activation",
]

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
