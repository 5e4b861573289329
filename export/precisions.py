"""PRECISIONS: the numbers that a graph's weights are stored in.

`float16` computes in float16 where the machine can: on a GPU. ONNX Runtime's CPU has float16
kernels for few operators and computes the others in float32, with conversions between them.

`bfloat16` stores the matrices in bfloat16, half of the bytes, and turns them into float32 when the
graph is opened. It computes in float32, because ONNX Runtime 1.31 has no bfloat16 kernels for the
CPU of MatMul, Gemm, Add, Mul, Softmax, Erf, Tanh or Where: such a graph would not open.

In both, tokens come in as int64 and logits go out as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from onnx import helper, numpy_helper

from bertender.core.findings import LargestNumber
from bertender.text.batch import Encode
from bertender.text.example import Example
from export.activations import check_overflow, largest_numbers

__all__ = ["PRECISIONS", "Precision"]

STORED = "_bfloat16"
"""Suffix of the name of a matrix where it is stored."""


def _as_it_is(model: onnx.ModelProto) -> onnx.ModelProto:
    return model


def _float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 graph that computes in float16."""
    # loaded here, because it takes a second that other commands need not wait
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(model)
    # its own shape inference knows ONNX Runtime's operators, which that of onnx does not
    converted.convert_float_to_float16(use_symbolic_shape_infer=True, keep_io_types=True)
    converted.topological_sort()
    result: onnx.ModelProto = converted.model
    return result


def _bfloat16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float32 graph whose matrices are stored in bfloat16."""
    matrices = [
        tensor
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1
    ]
    nodes = [*map(_cast_of, matrices), *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for matrix in matrices:
        _store(matrix)
    return model


def _cast_of(matrix: onnx.TensorProto) -> onnx.NodeProto:
    """Return what gives a matrix, under its own name, from where it is stored."""
    name = matrix.name
    return helper.make_node(
        "Cast", [name + STORED], [name], name=f"{name}_cast", to=onnx.TensorProto.FLOAT
    )


def _store(matrix: onnx.TensorProto) -> None:
    """Round a tensor to bfloat16, in place."""
    numbers = torch.from_numpy(numpy_helper.to_array(matrix).copy()).to(torch.bfloat16)
    matrix.CopyFrom(
        onnx.TensorProto(
            name=matrix.name + STORED,
            data_type=onnx.TensorProto.BFLOAT16,
            dims=matrix.dims,
            raw_data=numbers.view(torch.int16).numpy().tobytes(),
        )
    )


def _anything(graph: Path, encode: Encode, examples: Sequence[Example], allow: bool) -> None:
    return None


def _within_float16(
    graph: Path, encode: Encode, examples: Sequence[Example], allow: bool
) -> LargestNumber:
    """Return the largest number of a graph, or refuse what float16 may not hold."""
    reaches = largest_numbers(graph, encode, examples)
    check_overflow(reaches, len(examples), allow=allow)
    return LargestNumber(**dict(reaches[0]), texts=len(examples))


@dataclass(frozen=True)
class Precision:
    """A row of PRECISIONS, each of which is a row of TOLERANCES too."""

    convert: Callable[[onnx.ModelProto], onnx.ModelProto] = _as_it_is
    """Takes the optimised graph of float32; it may be changed in place."""
    examine: Callable[[Path, Encode, Sequence[Example], bool], LargestNumber | None] = _anything
    """(traced graph of float32, encode, texts, whether overflow is allowed) -> for the card

    Raises ModelError where the precision could not hold what the graph computes.
    """


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(),
    "float16": Precision(_float16, examine=_within_float16),
    "bfloat16": Precision(_bfloat16),
}
