"""What a quantization has found, in a few lines, from an artifact's card alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["quantization_lines"]

SHOWN_PARTS = 5


def quantization_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return the lines; none where nothing was quantized."""
    found = metrics.get("quantization")
    if not found:
        return []
    operators = ", ".join(f"{count} {name}" for name, count in _integer(found).items())
    stays = f"{len(found['float_nodes'])} nodes stay in float"
    if found["running_in_integers"] is None:
        lines = [
            f"for {found['target']}: {found['products']} products quantized; {stays}. What runs "
            "there was not checked, as this machine is none: quantize there, or verify there"
        ]
    else:
        lines = [
            f"for {found['target']}: {found['running_in_integers']} of {found['products']} "
            f"quantized products run in integers ({operators}); {stays}"
        ]
    saturation = found["saturation"] or {}
    if saturation.get("largest_deviation") is not None:  # earlier cards compared logits
        lines.append(
            f"sums of {saturation['products']} products, each on its own inputs, are off from "
            f"exact ones by {saturation['largest_deviation']:.2g} of the largest at most"
        )
    lines += _product_check(found)
    lines += [
        f"scheme {each['scheme']} was {name}: {each[name]}"
        for each in found.get("tried", ())
        for name in ("refused", "skipped")
        if name in each
    ]
    if "score" in found:
        lines.append(
            f"score {found['score_before']:.4g} before, {found['score']:.4g} now{_chosen(found)}"
        )
    return [*lines, *_sensitivity(found)]


def _integer(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the counted operators that multiply by integers or turn floats into them."""
    words = ("Integer", "Quantize", "NBits", "QGemm", "QLinear")
    return {
        name: count
        for name, count in found["operators"].items()
        if any(word in name for word in words)
    }


def _product_check(found: Mapping[str, Any]) -> list[str]:
    """Return the product that is the least like its float twin; cards of old have none."""
    worst = found.get("product_check", {}).get("worst")
    if not worst:
        return []
    node, figures = next(iter(worst.items()))
    said = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items() if name != "kind"
    )
    return [
        f"{found['product_check']['checked']} products and tables compared with their float "
        f"twins; least like it: {node} ({said})"
    ]


def _chosen(found: Mapping[str, Any]) -> str:
    """Return the scores by which a drop was judged, where they are not the held-out ones."""
    if found.get("chosen_on") != "selection":
        return ""
    choice = found["choice"]
    return (
        f" (held-out, read once; judged by {choice['n']} texts set apart: "
        f"{choice['before']:.4g} before, {choice['after']:.4g} now)"
    )


def _sensitivity(found: Mapping[str, Any]) -> list[str]:
    """Return the most sensitive parts, and what became of them."""
    table = found.get("sensitivity")
    if not table:
        return []
    back = found.get("returned", {})
    rows = [
        f"  {value:10.3g}  {node}{'  (went back)' if node in back else ''}"
        for node, value in list(table.items())[: max(SHOWN_PARTS, len(back))]
    ]
    return ["most sensitive parts:", *rows]
