"""What a written graph is: recorded in the artifact's card under `metrics["graph"]`."""

from __future__ import annotations

from typing import Any

import onnx
from pydantic import Field

from bertender.core.config import Record

__all__ = ["GraphReport", "report_graph"]


class GraphReport(Record):
    """A graph as it was written."""

    opset: int = Field(description="of ONNX's own operators; at least what was asked for")
    nodes: int


def report_graph(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the GraphReport of a graph as plain values, for an artifact's card."""
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    return GraphReport(opset=opset, nodes=len(model.graph.node)).model_dump()
