"""Inner tensors of a graph: read while it runs, or handed to another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from bertender.models.onnx_session import open_session

__all__ = [
    "TOLERATED",
    "TensorDifference",
    "largest",
    "open_watched",
    "relative_difference",
    "run_with",
]

Array = npt.NDArray[Any]
TOLERATED = 1e-5
"""Of `relative_difference`, where nothing was rounded. Between two products of a 6 x 384 encoder
sums in another order differ by 3e-7 at most."""


@dataclass(frozen=True)
class TensorDifference:
    """A tensor of a quantized graph, and how far it is from what it should be."""

    tensor: str
    difference: float
    """Root mean square, relative; the largest of the batches."""

    @property
    def is_tolerated(self) -> bool:
        return self.difference <= TOLERATED


def largest(differences: Iterable[tuple[str, float]]) -> tuple[TensorDifference, ...]:
    """Return the largest difference of each tensor; one that is not a number stays so."""
    worst: dict[str, float] = {}
    for name, difference in differences:
        worst[name] = float(np.maximum(worst.get(name, 0.0), difference))
    return tuple(TensorDifference(name, difference) for name, difference in worst.items())


def open_watched(graph: Path, tensors: Iterable[str], folder: Path) -> onnxruntime.InferenceSession:
    """Open a graph, copied into a folder, with some of its inner tensors among its outputs."""
    model = onnx.load(graph)
    outputs = {output.name for output in model.graph.output}
    for name in tensors:
        if name not in outputs:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    onnx.save(model, folder / "watched.onnx", save_as_external_data=True)  # above 2 GB, too
    return open_session(folder / "watched.onnx")


def run_with(session: Any, known: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    """Return some tensors of a graph by name, with all that is known already."""
    asked = [name for name in dict.fromkeys(names) if name not in known]
    inputs = {node.name: known[node.name] for node in session.get_inputs()}
    return {**known, **dict(zip(asked, session.run(asked, inputs), strict=True))}


def relative_difference(actual: Array, wanted: Array) -> float:
    """Return the root mean square of the differences over that of the values."""
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    size = float(np.sqrt(np.square(wanted).mean()))
    return float(np.sqrt(np.square(actual - wanted).mean())) / (size or 1.0)
