"""Sums of 8-bit products that OpenVINO would add wrongly on this CPU.

x86 without 8-bit dot products adds pairs of products in 16 bits, which saturate where weights have
more than 7 bits: wrong outputs, without an error. OpenVINO has no option against it.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bertender.core.errors import ModelError
from bertender.models.cpu_flags import saturates

__all__ = ["check_sums", "has_static_scales", "largest_weight"]

LARGEST = 64
"""Of weights whose products with two numbers of 0 to 255 fit into 16 bits."""


def check_sums(openvino: ModuleType, graph: Path) -> None:
    """Raise ModelError where a graph's sums would saturate on this CPU."""
    if saturates() and (largest := largest_weight(openvino, graph)) > LARGEST:
        raise ModelError(
            f"this CPU has no 8-bit dot products, and OpenVINO would not add those of {graph} "
            f"exactly: weights are up to {largest}, allowed is {LARGEST}. Use runtime "
            "'onnxruntime', which adds them exactly, or quantize again with --target avx2."
        )


def largest_weight(openvino: ModuleType, graph: Path) -> int:
    """Return the largest 8-bit weight, by size, of products in integers; 0 without any.

    OpenVINO multiplies in integers where activations are rounded by scales that the graph has; else
    it turns weights back into floats, whose sums are exact.
    """
    nodes = _nodes(openvino, graph)
    if not _rounds_activations(nodes):
        return 0
    weights = (node.data for node in nodes if _is_weight(node))
    return max((int(np.abs(each.astype(np.int16)).max(initial=0)) for each in weights), default=0)


def has_static_scales(openvino: ModuleType, graph: Path) -> bool:
    """Return whether activations are rounded by scales that the graph has."""
    return _rounds_activations(_nodes(openvino, graph))


def _nodes(openvino: ModuleType, graph: Path) -> list[Any]:
    """Return the nodes of a graph; none of one that cannot be opened, which says so elsewhere."""
    try:
        return list(openvino.Core().read_model(str(graph)).get_ops())
    except RuntimeError:
        return []


def _rounds_activations(nodes: list[Any]) -> bool:
    return any(node.get_type_name() == "FakeQuantize" for node in nodes)


def _is_weight(node: Any) -> bool:
    """Return whether a node is a constant of 8-bit integers (inputs, outputs), and not a table."""
    if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "i8":
        return False
    readers = {each.get_node().get_type_name() for each in node.output(0).get_target_inputs()}
    return len(node.get_shape()) == 2 and "Gather" not in readers
