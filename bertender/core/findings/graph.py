"""Findings of an exported graph: its operators, and how large its numbers become."""

from __future__ import annotations

from pydantic import Field

from bertender.core.findings.part import Part

__all__ = ["GraphFindings", "LargestNumber"]


class GraphFindings(Part):
    """A graph as it was written."""

    opset: int = Field(description="of ONNX's own operators; at least what was asked for")
    optimize: str = Field(description="a row of OPTIMIZATIONS")
    nodes: int
    fused: dict[str, int] = Field(description="nodes of ONNX Runtime's own operators, by operator")
    layers: int = Field(description="of the model; every one has an attention")


class LargestNumber(Part):
    """The largest absolute number that a graph computes on some texts."""

    place: str = Field(description="operator and node that give it, or the name of a weight")
    largest: float
    texts: int
