"""Constants of 2, 3 or 4 bits in a graph: bytes of packed integers, and nodes that unpack them.

A byte looks up all the integers in it. 3 bits are the sum of 2 and 1, each in bytes of its own. The
nodes are ONNX's own and read constants alone, so that ONNX Runtime computes them once, when the
graph is opened, and then multiplies by the same 8-bit integers as of an unpacked graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertender.core.errors import ModelError
from bertender.models.graph_file import MOST_MB, save_graph

__all__ = ["pack_constants"]

WIDTHS: Mapping[int, tuple[int, ...]] = {2: (2,), 3: (2, 1), 4: (4,)}
"""Bits -> those of the parts that an integer is the sum of, the highest first."""
BYTE_VALUES = np.arange(256)
ONE_ROW = np.array([-1])


def pack_constants(graph: Path, bits: Mapping[str, int]) -> None:
    """Pack some constants of a graph, in its file.

    Args:
        graph: its constants are of odd 8-bit integers, symmetric around 0.
        bits: name of a constant -> bits of its integers, a key of WIDTHS. The largest integer in
            size is 2**bits - 1.

    Raises:
        ModelError: a constant is missing, or has other integers.
    """
    model = onnx.load(graph)
    packed = _Packed(bits)
    constants = [item for item in model.graph.initializer if item.name in bits]
    if missing := bits.keys() - {item.name for item in constants}:
        raise ModelError(f"{graph} has no constants {', '.join(sorted(missing))} to pack.")
    for constant in constants:
        packed.add(constant.name, numpy_helper.to_array(constant))
        model.graph.initializer.remove(constant)
    model.graph.initializer.extend(packed.constants.values())
    nodes = [*packed.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    save_graph(model, graph, MOST_MB)


class _Packed:
    """Constants and nodes that unpack others."""

    def __init__(self, bits: Mapping[str, int]) -> None:
        self.bits = bits
        self.constants: dict[str, onnx.TensorProto] = {}
        self.nodes: list[onnx.NodeProto] = []

    def add(self, name: str, integers: npt.NDArray[np.int8]) -> None:
        """Add what computes a tensor of integers."""
        bits = self.bits[name]
        if np.any(integers % 2 == 0) or np.abs(integers.astype(np.int64)).max() >= 2**bits:
            raise ModelError(f"{name} has other integers than odd ones of {bits} bits.")
        positions = (integers.astype(np.int64).reshape(-1) + 2**bits - 1) // 2
        parts = [
            self._looked_up(f"{name}_part{place}", positions, bits, place)
            for place in range(len(WIDTHS[bits]))
        ]
        whole = parts[0] if len(parts) == 1 else self._sum(f"{name}_sum", parts)
        sizes = "x".join(map(str, integers.shape))
        shape = self._constant(f"unpacked_shape_{sizes}", np.array(integers.shape))
        self._node("Reshape", name, whole, shape)

    def _looked_up(self, name: str, positions: npt.NDArray[np.int64], bits: int, place: int) -> str:
        """Add a part of integers, by their positions among the levels; return its tensor."""
        width, shift = WIDTHS[bits][place], sum(WIDTHS[bits][place + 1 :])
        part = (positions >> shift) % 2**width
        stored = self._constant(f"{name}_bytes", _in_bytes(part, width))
        table = self._constant(f"unpacked_{bits}_bits_{place}", _table(bits, place))
        numbers = self._node("Cast", f"{name}_numbers", stored, to=TensorProto.INT32)
        values = self._node("Gather", name, table, numbers)
        return values if len(part) % (8 // width) == 0 else self._cut(values, len(part))

    def _cut(self, values: str, count: int) -> str:
        """Add what leaves the first values alone: the last byte has more."""
        ends = (self._constant("unpacked_first", [0]), self._constant(f"unpacked_{count}", [count]))
        return self._node("Slice", f"{values}_cut", self._row(values), *ends)

    def _sum(self, name: str, parts: Sequence[str]) -> str:
        """Add the sum of parts: ONNX Runtime adds integers of 32 bits, not of 8."""
        wide = [
            self._node("Cast", f"{each}_wide", self._row(each), to=TensorProto.INT32)
            for each in parts
        ]
        whole = wide[0]
        for place, each in enumerate(wide[1:], start=1):
            whole = self._node("Add", f"{name}{place}", whole, each)
        return self._node("Cast", name, whole, to=TensorProto.INT8)

    def _row(self, values: str) -> str:
        """Add a tensor in one row: parts have other numbers of integers a byte."""
        return self._node(
            "Reshape", f"{values}_row", values, self._constant("unpacked_all", ONE_ROW)
        )

    def _node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        node = helper.make_node(operator, [*inputs], [name], name=f"{name}/unpack", **attributes)
        self.nodes.append(node)
        return name

    def _constant(self, name: str, value: npt.ArrayLike) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name


def _in_bytes(part: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Return integers of some bits in bytes, the first one lowest; what is missing is 0."""
    each = 8 // width
    rows = np.pad(part, (0, -len(part) % each)).reshape(-1, each)
    return np.asarray((rows << _shifts(width)).sum(axis=1), dtype=np.uint8)


def _table(bits: int, place: int) -> npt.NDArray[np.int8]:
    """Return what each byte adds to the integers in it: (256, integers a byte)."""
    width, shift = WIDTHS[bits][place], sum(WIDTHS[bits][place + 1 :])
    part = (BYTE_VALUES[:, None] >> _shifts(width)) % 2**width
    least = 2**bits - 1 if place == 0 else 0
    return np.asarray(2 * (part << shift) - least, dtype=np.int8)


def _shifts(width: int) -> npt.NDArray[np.int64]:
    return np.arange(0, 8, width)
