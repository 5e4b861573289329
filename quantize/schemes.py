"""SCHEMES: every way to quantize an ONNX graph, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertender.core.errors import UnknownNameError
from quantize.dynamic import quantize_dynamically

__all__ = ["SCHEMES", "Scheme", "scheme_named"]


@dataclass(frozen=True)
class Scheme:
    """A row of SCHEMES."""

    summary: str
    precision: str
    """The row of the parity gate's tolerances."""
    write: Callable[[Path, Path], None]
    """(graph to read, graph to write)"""


SCHEMES: Mapping[str, Scheme] = {
    "dynamic": Scheme(
        summary="int8 weights per channel and embeddings; activation scales found while running",
        precision="int8",
        write=quantize_dynamically,
    ),
}


def scheme_named(name: str) -> Scheme:
    """Return a row of SCHEMES, or raise UnknownNameError with the nearest name."""
    if name not in SCHEMES:
        raise UnknownNameError("quantization scheme", name, SCHEMES)
    return SCHEMES[name]
