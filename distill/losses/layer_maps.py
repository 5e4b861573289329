"""LAYER_MAPS: which student layer learns from which teacher layer.

A map takes the depths (student, teacher) and returns pairs (student layer, teacher layer), as the
papers count them: layers from 1, and 0 for the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable

from bertender.core.table import Table

__all__ = [
    "LAYER_MAPS",
    "LayerMap",
    "Pairs",
    "last",
    "last_between",
    "skip",
    "uniform",
    "with_embeddings",
]

Pairs = tuple[tuple[int, int], ...]
LayerMap = Callable[[int, int], Pairs]


def last(student: int, teacher: int) -> Pairs:
    """Match the last layers alone."""
    return ((student, teacher),)


def uniform(student: int, teacher: int) -> Pairs:
    """Match evenly spread teacher layers, up to the last (TinyBERT, eq. 6: g(m) = m N / M)."""
    return tuple((layer, layer * teacher // student) for layer in range(1, student + 1))


def with_embeddings(student: int, teacher: int) -> Pairs:
    """Match the embeddings, and `uniform` layers."""
    return ((0, 0), *uniform(student, teacher))


def skip(student: int, teacher: int) -> Pairs:
    """Match every k-th teacher layer but the last, which the soft labels teach (PKD-Skip)."""
    return uniform(student, teacher)[:-1]


def last_between(student: int, teacher: int) -> Pairs:
    """Match the teacher's last layers but the very last (PKD-Last: 7 to 11 for 12 -> 6)."""
    return tuple((layer, teacher - student + layer) for layer in range(1, student))


LAYER_MAPS = Table(
    "layer map",
    {
        "last": last,
        "last-between": last_between,
        "skip": skip,
        "uniform": uniform,
        "with-embeddings": with_embeddings,
    },
)
