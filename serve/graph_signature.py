"""What a graph of ONNX takes and returns, read without the packages onnx and onnxruntime.

The extra `serve` has no onnx, and a session of ONNX Runtime would prepare the whole graph to run.
The messages below are the part of onnx.proto that is read here, under the field numbers there;
protobuf skips the others.

https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from bertender.core.errors import ModelError

__all__ = ["DATA_TYPES", "GraphSignature", "TensorSignature", "read_signature"]

PACKAGE = "bertender.onnx"

Scalar = descriptor_pb2.FieldDescriptorProto
INT, INT32, STRING = Scalar.TYPE_INT64, Scalar.TYPE_INT32, Scalar.TYPE_STRING
ONE, MANY = Scalar.LABEL_OPTIONAL, Scalar.LABEL_REPEATED

MESSAGES: Mapping[str, Mapping[str, tuple[int, int | str, int]]] = {
    "Model": {"ir_version": (1, INT, ONE), "graph": (7, "Graph", ONE)},
    "Graph": {
        "node": (1, "Node", MANY),
        "initializer": (5, "Tensor", MANY),
        "input": (11, "ValueInfo", MANY),
        "output": (12, "ValueInfo", MANY),
    },
    "Node": {"op_type": (4, STRING, ONE), "domain": (7, STRING, ONE)},
    "Tensor": {
        "data_type": (2, INT32, ONE),
        "name": (8, STRING, ONE),
        "external_data": (13, "Entry", MANY),
    },
    "Entry": {"key": (1, STRING, ONE), "value": (2, STRING, ONE)},
    "ValueInfo": {"name": (1, STRING, ONE), "type": (2, "Type", ONE)},
    "Type": {"tensor_type": (1, "TensorType", ONE)},
    "TensorType": {"elem_type": (1, INT32, ONE), "shape": (2, "Shape", ONE)},
    "Shape": {"dim": (1, "Dimension", MANY)},
    "Dimension": {"dim_value": (1, INT, ONE), "dim_param": (2, STRING, ONE)},
}
"""Message -> field -> its number, type (a scalar or a message) and label."""

DATA_TYPES: Mapping[int, str] = {
    **{1: "TYPE_FP32", 2: "TYPE_UINT8", 3: "TYPE_INT8", 4: "TYPE_UINT16", 5: "TYPE_INT16"},
    **{6: "TYPE_INT32", 7: "TYPE_INT64", 8: "TYPE_STRING", 9: "TYPE_BOOL", 10: "TYPE_FP16"},
    **{11: "TYPE_FP64", 12: "TYPE_UINT32", 13: "TYPE_UINT64", 16: "TYPE_BF16"},
}
"""TensorProto.DataType of ONNX -> DataType of Triton's model_config.proto."""

ANY = -1
"""A dimension of any size, as Triton writes it."""


@dataclass(frozen=True)
class TensorSignature:
    """An input or output of a graph."""

    name: str
    data_type: str
    """As in Triton's model_config.proto."""
    dims: tuple[int, ...] | None
    """-1 for any size; None where the graph has no shape for it."""


@dataclass(frozen=True)
class GraphSignature:
    """What is known of a graph without running it."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    operators: frozenset[str]
    """Types of its nodes, those of functions and branches inside them left out."""
    weight_types: frozenset[str]
    """Data types of its weights, as in Triton's model_config.proto."""
    weight_files: frozenset[str]
    """Other files with its weights, relative to the graph's folder."""


MOST_BYTES = 2**31 - 1


def read_signature(path: Path) -> GraphSignature:
    """Return the signature of a graph's file.

    Raises:
        ModelError: the file is missing, or holds no graph of ONNX.
    """
    try:
        if not path.is_file():  # a device or a pipe would be read for ever
            raise OSError("it is no file")
        if path.stat().st_size > MOST_BYTES:
            raise OSError(f"it has more than the {MOST_BYTES} bytes that protobuf reads")
        graph = _classes()["Model"].FromString(path.read_bytes()).graph
    except (OSError, DecodeError) as error:
        raise ModelError(f"{path} is no graph of ONNX: {error}. Export the model again.") from None
    if not graph.node or not graph.output:
        raise ModelError(f"{path} is no graph of ONNX: it has no nodes. Export the model again.")
    weights = {tensor.name for tensor in graph.initializer}
    return GraphSignature(
        # before version 4 of the format, weights were inputs as well
        inputs=tuple(_signature(each) for each in graph.input if each.name not in weights),
        outputs=tuple(map(_signature, graph.output)),
        operators=frozenset(node.op_type for node in graph.node),
        weight_types=frozenset(_data_type(each.data_type) for each in graph.initializer),
        weight_files=frozenset(
            entry.value
            for tensor in graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        ),
    )


def _signature(value: Any) -> TensorSignature:
    tensor = value.type.tensor_type
    dims = tuple(
        int(dim.dim_value) if dim.HasField("dim_value") else ANY for dim in tensor.shape.dim
    )
    known = tensor.HasField("shape")
    return TensorSignature(value.name, _data_type(tensor.elem_type), dims if known else None)


def _data_type(number: int) -> str:
    return DATA_TYPES.get(number, f"type {number} of ONNX")


@functools.cache
def _classes() -> Mapping[str, Any]:
    """Return the class of each of MESSAGES; made in a pool of their own, beside those of onnx."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, label) in fields.items():
            is_message = isinstance(kind, str)
            message.field.add(
                name=field,
                number=number,
                label=label,
                type=Scalar.TYPE_MESSAGE if is_message else kind,
                type_name=f".{PACKAGE}.{kind}" if is_message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }
