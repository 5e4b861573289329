"""A quantization's findings in a few lines, from an artifact's card alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from bertender.core.findings import (
    Findings,
    ProductCheck,
    QuantizationFindings,
    SaturationFindings,
    ScoreFindings,
    SensitivityFindings,
    TriedScheme,
)
from bertender.models.runtimes import RUNTIMES
from bertender.report.cells import number

__all__ = ["quantization_lines"]

SHOWN_PARTS = 5
INTEGER = re.compile(r"Integer|Quantize|NBits|QAttention|QGemm|QLinear| [ui][48]$")
"""In the names of ONNX Runtime's operators and of OpenVINO's, which end in their precision."""


def quantization_lines(findings: Findings) -> list[str]:
    """Return the lines; none where nothing was quantized."""
    if not (quantization := findings.quantization):
        return []
    return [
        _products(quantization),
        *_weight_bits(quantization.weight_bits),
        *_fused_attentions(quantization.fused_attentions),
        *_saturation(quantization.saturation),
        *_product_check(quantization.product_check),
        *map(_tried, quantization.tried),
        *_scores(findings.scores),
        *_sensitivity(quantization.sensitivity),
    ]


def _products(quantization: QuantizationFindings) -> str:
    """Return what was quantized, and what of it runs in integers."""
    stays = f"{len(quantization.float_nodes)} nodes stay in float"
    if quantization.running_in_integers is None:
        return (
            f"for {quantization.target}: {quantization.products} products quantized; {stays}. What "
            "runs there was not checked, as this machine is none: quantize there, or verify there"
        )
    operators = ", ".join(f"{count} {name}" for name, count in _integer(quantization).items())
    return (
        f"for {quantization.target}, {RUNTIMES[quantization.runtime].title}: "
        f"{quantization.running_in_integers} of {quantization.products} quantized "
        f"products run in integers ({operators}); {stays}"
    )


def _weight_bits(bits: Mapping[str, int] | None) -> list[str]:
    """Return how many products have which bits in the file, where some have fewer than 8."""
    if not bits:
        return []
    counts = sorted(Counter(bits.values()).items())
    shown = ", ".join(f"{count} of {width} bits" for width, count in counts)
    return [f"weights of products in the file: {shown}, the others of 8; they are multiplied in 8"]


def _fused_attentions(count: int | None) -> list[str]:
    return [] if count is None else [f"attentions that are one operator: {count}"]


def _integer(quantization: QuantizationFindings) -> dict[str, int]:
    """Return the counted operators that multiply by integers or turn floats into them."""
    return {name: count for name, count in quantization.operators.items() if INTEGER.search(name)}


def _saturation(saturation: SaturationFindings | None) -> list[str]:
    if saturation is None or saturation.largest_deviation is None:
        return []
    return [
        f"sums of {saturation.products} products, each on its own inputs, are off from "
        f"exact ones by {saturation.largest_deviation:.2g} of the largest at most"
    ]


def _product_check(check: ProductCheck | None) -> list[str]:
    """Return the product that is the least like its float twin; earlier cards have none."""
    if check is None or not check.worst:
        return []
    node, likeness = next(iter(check.worst.items()))
    figures = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in likeness.figures.items()
    )
    return [
        f"{check.checked} products and tables compared with their float twins; least like it: "
        f"{node} ({figures})"
    ]


def _tried(tried: TriedScheme) -> str:
    if tried.refused is None:
        return f"scheme {tried.scheme} was skipped: {tried.skipped}"
    return f"scheme {tried.scheme} was refused: {tried.refused}"


def _scores(scores: ScoreFindings | None) -> list[str]:
    if scores is None:
        return []
    before, after = number(scores.score_before), number(scores.score)
    return [f"score {before} before, {after} now{_chosen(scores)}"]


def _chosen(scores: ScoreFindings) -> str:
    """Return the scores by which a drop was judged, where they are not the held-out ones."""
    if scores.chosen_on != "selection" or not (choice := scores.choice):
        return ""
    return (
        f" (held-out, read once; judged by {choice.n} texts set apart: "
        f"{choice.before:.4g} before, {choice.after:.4g} now)"
    )


def _sensitivity(sensitivity: SensitivityFindings | None) -> list[str]:
    """Return the most sensitive parts, and what became of them."""
    if sensitivity is None or not sensitivity.by_node:
        return []
    back = sensitivity.returned
    rows = [
        f"  {value:10.3g}  {node}{'  (went back)' if node in back else ''}"
        for node, value in list(sensitivity.by_node.items())[: max(SHOWN_PARTS, len(back))]
    ]
    return ["most sensitive parts:", *rows]
