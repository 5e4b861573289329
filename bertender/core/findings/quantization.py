"""Findings of a quantization, and what the gates measured of its graph."""

from __future__ import annotations

from pydantic import Field

from bertender.core.findings.part import Part

__all__ = [
    "Curvature",
    "PartLikeness",
    "ProductCheck",
    "QuantizationFindings",
    "SaturationFindings",
    "SensitivityFindings",
    "TriedScheme",
]


class SaturationFindings(Part):
    """Deviation of this CPU's sums of integer products."""

    products: int = Field(description="that were compared with exact sums")
    rows: int = Field(description="activations of each, at most")
    largest_deviation: float | None = Field(
        None, description="over the largest output of the product; None of no product"
    )
    worst: str | None = Field(None, description="the product that deviates most")
    allowed: float


class PartLikeness(Part):
    """Figures of a quantized product or table against its float twin."""

    kind: str = Field(description="a row of BOUNDS")
    figures: dict[str, float] = Field(description="by their names in BOUNDS")


class ProductCheck(Part):
    """Figures of quantized products and tables against their float twins."""

    checked: int
    worst: dict[str, PartLikeness] = Field(description="the worst few by noise, worst first")


class Curvature(Part):
    """The curvature of the loss by a weight, over some parts of the texts."""

    mean: float
    deviation: float
    steps: tuple[int, ...] = Field(description="of the estimate, for each part of the texts")
    settled: bool = Field(description="whether every estimate settled within its steps")


class SensitivityFindings(Part):
    """Sensitivity of parts to quantization, and the parts that returned to float."""

    by_node: dict[str, float] = Field(
        description="larger is worse, worst first; empty where nothing had to return"
    )
    curvature: dict[str, Curvature] | None = Field(None, description="where it was estimated")
    drops: tuple[float, ...] = Field(description="points lost with 0, 1, 2, ... parts returned")
    returned: dict[str, str] = Field(description="part -> why it returned")


class TriedScheme(Part):
    """A scheme that was refused or skipped before the one that passed."""

    scheme: str
    refused: str | None = Field(None, description="the gate's message")
    skipped: str | None = Field(None, description="why it was not tried")


class QuantizationFindings(Part):
    """A quantized graph, and what its gates measured."""

    target: str = Field(description="a row of TARGETS")
    products: int = Field(description="that were quantized")
    running_in_integers: int | None = Field(
        None, description="of them; None where this machine is not such a target"
    )
    float_nodes: dict[str, str] = Field(description="node that stays in float -> why")
    runtime: str = Field("onnxruntime", description="row of RUNTIMES that the gates ran it in")
    operators: dict[str, int] = Field(description="as the runtime runs the graph")
    products_of_4_bits: int | None = None
    weight_bits: dict[str, int] | None = Field(
        None, description="of weights stored with fewer than 8 and multiplied in 8, by node"
    )
    tables_of_4_bits: int | None = None
    fused_attentions: int | None = Field(
        None, description="attentions that are one operator, where that was asked for"
    )
    saturation: SaturationFindings | None = Field(
        None, description="None where this machine is not such a target"
    )
    product_check: ProductCheck | None = Field(None, description="of earlier cards not recorded")
    largest_difference_between_products: float | None = Field(
        None, description="of a tensor between products; of earlier cards not recorded"
    )
    ranges: dict[str, tuple[float, float]] = Field(
        {}, description="of static activations, by the tensor's name"
    )
    sensitivity: SensitivityFindings | None = None
    tried: tuple[TriedScheme, ...] = Field((), description="schemes before the one that passed")
