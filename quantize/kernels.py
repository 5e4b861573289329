"""Operators that ONNX Runtime really runs after it has opened a quantized graph."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from bertender.core.errors import GateError
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.models.onnx_session import open_session

__all__ = ["INTEGER_PRODUCTS", "check_kernels", "operators"]

INTEGER_PRODUCTS = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "QGemm",
        "QLinearMatMul",
    }
)
"""Operators that multiply by integer weights."""


def operators(graph: Path) -> dict[str, int]:
    """Count the operators of a graph as ONNX Runtime runs it on this CPU, after its fusions."""
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / ONNX_NAME
        open_session(graph, optimized=optimized)
        nodes = onnx.load(optimized, load_external_data=False).graph.node
    return dict(sorted(Counter(node.op_type for node in nodes).items()))


def check_kernels(actual: dict[str, int], wanted: int) -> int:
    """Return how many products run in integers, or raise GateError if fewer than were quantized.

    Args:
        actual: the counts of `operators`.
        wanted: how many products were quantized.
    """
    running = sum(count for name, count in actual.items() if name in INTEGER_PRODUCTS)
    if running < wanted:
        raise GateError(
            f"{wanted} products were quantized and ONNX Runtime runs {running} of them in "
            "integers; all are required. The others would be turned back into floats for each "
            "batch, slower than before. Its version may lack a fusion: install the one of "
            "constraints.txt, or use another --scheme."
        )
    return running
