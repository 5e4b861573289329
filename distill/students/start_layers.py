"""START_LAYERS: which layers of what it starts from a student takes.

A choice takes the depths (start, student) and returns layers of the start, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable

from bertender.core.table import Table
from distill.losses.layer_maps import uniform

__all__ = ["START_LAYERS", "LayerChoice"]

LayerChoice = Callable[[int, int], tuple[int, ...]]

PUBLISHED_LAYERS = {(12, 6): (0, 2, 4, 7, 9, 11)}


def _first(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, as PKD and BERT-of-Theseus do."""
    return tuple(range(student))


def _first_and_last(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, and the last one in place of the last of them."""
    return (*range(student - 1), start - 1)


def _spread(start: int, student: int) -> tuple[int, ...]:
    """Choose evenly spread layers, the last among them (12 -> 6: 1, 3, 5, 7, 9, 11).

    They are those that the layer map `uniform` matches.
    """
    return tuple(layer - 1 for _, layer in uniform(student, start))


def _alternating(start: int, student: int) -> tuple[int, ...]:
    """Choose the layers of the published DistilBERT for 12 -> 6, and else `spread`."""
    return PUBLISHED_LAYERS.get((start, student)) or _spread(start, student)


START_LAYERS: Table[LayerChoice] = Table(
    "choice of layers",
    {
        "first": _first,
        "first-and-last": _first_and_last,
        "spread": _spread,
        "alternating": _alternating,
    },
)
