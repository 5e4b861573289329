"""An exported graph as lines for the terminal."""

from __future__ import annotations

from bertender.core.findings import Findings

__all__ = ["graph_lines"]


def graph_lines(findings: Findings) -> list[str]:
    """Return an onnx artifact's findings of its graph; nothing for other artifacts."""
    if not (graph := findings.graph):
        return []
    lines = [f"graph: opset {graph.opset}, {graph.nodes} nodes, optimize {graph.optimize}"]
    if graph.fused:
        counts = ", ".join(f"{count} {name}" for name, count in graph.fused.items())
        lines.append(f"fused of {graph.layers} layers: {counts}")
    if numbers := findings.numbers:
        lines.append(
            f"largest number on {numbers.texts} texts: {numbers.largest:.4g}, at {numbers.place}"
        )
    return lines
