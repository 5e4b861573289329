"""A CPU without 8-bit dot products, in numpy: pairs of products are cut off at 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from quantize.graph import exact, nodes_between, run_cut

FloatArray = npt.NDArray[np.float32]
LOWEST, HIGHEST = -(2**15), 2**15 - 1


def saturating(cut: onnx.ModelProto, values: FloatArray) -> list[FloatArray]:
    """Run a cut of dynamic products, as `run_cut` does, on such a CPU."""
    right = run_cut(exact(cut), values, optimize=False)
    ends = [output.name for output in cut.graph.output]
    lost = [_lost(cut, end, values) for end in ends]
    return [exactly - loss for exactly, loss in zip(right, lost, strict=True)]


def _lost(cut: onnx.ModelProto, end: str, values: FloatArray) -> Any:
    """Return what is cut off of a product's outputs."""
    nodes = nodes_between(cut, [cut.graph.input[0].name], [end])
    (product,) = (node for node in nodes if node.op_type == "MatMulInteger")
    (scales,) = (node for node in nodes if node.name.endswith("_quant_scales_mul"))
    inner = onnx.ModelProto()
    inner.CopyFrom(cut)
    del inner.graph.output[:]
    inner.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in (product.input[0], scales.output[0])
    )
    integers, scale = run_cut(inner, values, optimize=False)
    constants = {item.name: item for item in cut.graph.initializer}
    weight = numpy_helper.to_array(constants[product.input[1]])
    return lost_of_sums(integers.astype(np.int64), weight.astype(np.int64)) * scale


def lost_of_sums(
    integers: npt.NDArray[np.int64], weight: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return what pairs beyond 16 bits lose: integers (rows, inputs), weight (inputs, outputs)."""
    lost = np.zeros((len(integers), weight.shape[1]), dtype=np.int64)
    for place in range(0, len(weight), 2):
        pair = integers[:, place : place + 2] @ weight[place : place + 2]
        lost += pair - np.clip(pair, LOWEST, HIGHEST)
    return lost
