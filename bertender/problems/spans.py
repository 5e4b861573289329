"""Spans: characters of a text that belong together, and the tensors of a response with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import Tensor, Tensors


class Span(NamedTuple):
    """Characters of a text that belong together, and what they are."""

    label: str
    score: float
    start: int
    end: int
    """The character after the last."""
    text: str


SPAN_OUTPUTS = (
    Tensor("SPAN_LABEL", "TYPE_STRING", (-1,)),
    Tensor("SPAN_SCORE", "TYPE_FP32", (-1,)),
    Tensor("SPAN_START", "TYPE_INT32", (-1,)),
    Tensor("SPAN_END", "TYPE_INT32", (-1,)),
    Tensor("SPAN_TEXT", "TYPE_STRING", (-1,)),
)
"""The fields of a span."""
SPAN_TENSORS = tuple(each.name for each in SPAN_OUTPUTS)


def span_tensors(spans: Sequence[Sequence[Span]]) -> dict[str, npt.NDArray[Any]]:
    """Return tensors (batch, spans), as long as the most spans of a text, padded with
    empty values."""
    shape = len(spans), max(1, *map(len, spans))
    tensors: dict[str, npt.NDArray[Any]] = {
        "SPAN_LABEL": np.full(shape, b"", dtype=np.object_),
        "SPAN_SCORE": np.zeros(shape, dtype=np.float32),
        "SPAN_START": np.zeros(shape, dtype=np.int32),
        "SPAN_END": np.zeros(shape, dtype=np.int32),
        "SPAN_TEXT": np.full(shape, b"", dtype=np.object_),
    }
    for row, own in enumerate(spans):
        for place, span in enumerate(own):
            for name, value in zip(SPAN_TENSORS, span, strict=True):
                tensors[name][row, place] = value.encode() if isinstance(value, str) else value
    return tensors


def most_spans(tensors: Tensors, rows: slice) -> int:
    """Return the most spans that a text of some rows has, 1 at least."""
    return max(1, int((tensors["SPAN_END"][rows] > 0).sum(axis=1).max()))


def read_spans(tensors: Tensors, row: int) -> tuple[dict[str, Any], ...] | None:
    """Return the spans in a row of a response; None where it has no tensors of spans, as those of
    servers of earlier versions."""
    if "SPAN_END" not in tensors:
        return None
    found = zip(*(tensors[name][row].tolist() for name in SPAN_TENSORS), strict=True)
    return tuple(
        {
            "label": label.decode(),
            "score": score,
            "start": start,
            "end": end,
            "text": text.decode(),
        }
        for label, score, start, end, text in found
        if end
    )
