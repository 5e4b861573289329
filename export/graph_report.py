"""What a written graph is: recorded in the artifact's card under `metrics["graph"]`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
from pydantic import Field

from bertender.core.config import Record

__all__ = ["GraphReport", "report_graph"]


FUSED_DOMAIN = "com.microsoft"
"""Where ONNX Runtime's own operators are, of which each does the work of many."""


class GraphReport(Record):
    """A graph as it was written."""

    opset: int = Field(description="of ONNX's own operators; at least what was asked for")
    optimize: str = Field(description="a row of OPTIMIZATIONS")
    nodes: int
    fused: dict[str, int] = Field(description="nodes of ONNX Runtime's own operators, by operator")
    layers: int = Field(description="of the model; every one has an attention")


def report_graph(model: onnx.ModelProto, optimize: str, layers: int) -> dict[str, Any]:
    """Return the GraphReport of a graph as plain values, for an artifact's card."""
    fused = Counter(node.op_type for node in model.graph.node if node.domain == FUSED_DOMAIN)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    return GraphReport(
        opset=opset,
        optimize=optimize,
        nodes=len(model.graph.node),
        fused=dict(sorted(fused.items())),
        layers=layers,
    ).model_dump()
