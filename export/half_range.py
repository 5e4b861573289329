"""Constants that float16 can hold, so that a graph survives being converted to it.

Attention masks are written as the least float32, which as float16 is minus infinity; times the 0
of a token that is not masked, that is not a number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["LARGEST", "fit_half_range"]

LARGEST = 1e4
"""Replaces larger constants: after a softmax all else becomes 0 next to it, and sums
with it stay far from 65504, the largest number of float16."""


def fit_half_range(model: onnx.ModelProto, stand_in: float = LARGEST) -> None:
    """Bring every single finite number beyond float16's range to +-`stand_in`, in place.

    Tables of weights stay as they are, or the outputs would change.
    """
    for constant in _single_numbers(model):
        value = numpy_helper.to_array(constant)
        if np.isfinite(value).all() and np.abs(value).max() > np.finfo(np.float16).max:
            fitting = np.sign(value) * value.dtype.type(stand_in)
            constant.CopyFrom(numpy_helper.from_array(fitting, constant.name))


def _single_numbers(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a graph that hold one floating-point number."""
    tensors = [
        attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
    ]
    for tensor in (*model.graph.initializer, *tensors):
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) == 1:
            yield tensor
