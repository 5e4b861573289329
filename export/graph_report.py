"""Contents of a written graph, for the findings of the artifact."""

from __future__ import annotations

from collections import Counter

import onnx

from bertender.core.findings import GraphFindings
from bertender.models.graph_optimizer import RUNTIME_DOMAIN

__all__ = ["report_graph"]


def report_graph(model: onnx.ModelProto, optimize: str, layers: int) -> GraphFindings:
    """Return what a graph is made of.

    Args:
        model: the graph.
        optimize: the row of OPTIMIZATIONS that it was written by.
        layers: of the model that was exported.
    """
    fused = Counter(node.op_type for node in model.graph.node if node.domain == RUNTIME_DOMAIN)
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    return GraphFindings(
        opset=opset,
        optimize=optimize,
        nodes=len(model.graph.node),
        fused=dict(sorted(fused.items())),
        layers=layers,
    )
