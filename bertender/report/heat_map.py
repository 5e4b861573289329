"""A map of layers x heads in colour: what each head was worth, and whether pruning left it."""

from __future__ import annotations

from dataclasses import dataclass

from bertender.measure.comparison import PrunedHeads

__all__ = ["HeadCell", "heat_map"]


@dataclass(frozen=True)
class HeadCell:
    """A head on a map in colour."""

    words: str
    colour: str
    remains: bool


def heat_map(pruned: PrunedHeads) -> list[tuple[int, list[HeadCell]]]:
    """Return a row for each layer, by its number: its heads, the darker the more important."""
    most = max((score for layer in pruned.importance for score in layer), default=0.0) or 1.0
    rows = zip(pruned.layers, pruned.importance, pruned.kept, strict=True)
    return [
        (number, [_cell(number, h, s, s / most, h in remaining) for h, s in enumerate(scores)])
        for number, scores, remaining in rows
    ]


def _cell(layer: int, head: int, score: float, share: float, remains: bool) -> HeadCell:
    words = f"layer {layer}, head {head}: {score:.4g}, {'remains' if remains else 'cut'}"
    return HeadCell(words, f"hsl(210 70% {95 - 50 * share:.0f}%)", remains)
