"""What an exported graph is, as lines for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["graph_lines"]


def graph_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return what an onnx artifact's metrics say of its graph; nothing for other artifacts."""
    if not (graph := metrics.get("graph")):
        return []
    lines = [f"graph: opset {graph['opset']}, {graph['nodes']} nodes, optimize {graph['optimize']}"]
    if fused := graph["fused"]:
        counts = ", ".join(f"{count} {name}" for name, count in fused.items())
        lines.append(f"fused of {graph['layers']} layers: {counts}")
    if numbers := metrics.get("numbers"):
        lines.append(
            f"largest number on {numbers['texts']} texts: {numbers['largest']:.4g}, at "
            f"{numbers['place']}"
        )
    return lines
