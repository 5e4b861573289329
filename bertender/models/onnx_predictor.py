"""ONNX Runtime as a predictor. PyTorch is not imported here, so that an endpoint starts quickly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.core.cores import threads_by_default
from bertender.models.onnx_session import open_session
from bertender.text.batch import Batch

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["MOST_MB", "ONNX_DATA_NAME", "ONNX_NAME", "OnnxPredictor"]

ONNX_NAME = "model.onnx"
"""The graph's file in an onnx artifact, where Optimum looks for it too."""

ONNX_DATA_NAME = "model.onnx_data"
"""Where the weights of a graph are that is too large for one file; Optimum's name for it."""

MOST_MB = 2000
"""Of a file that protobuf reads; it stops at 2 GiB."""


class OnnxPredictor:
    """An ONNX Runtime session on the CPU; arrays that its graph does not take are left out.

    Args:
        path: the graph.
        threads, spinning: see `open_session`.
        concurrent_runs: calls of `logits` at once, each of `threads`. All share one pool, and each
            has the thread that calls in it.

    Raises:
        ModelError: ONNX Runtime cannot open the graph.
    """

    def __init__(
        self, path: Path, threads: int = 0, *, spinning: bool = True, concurrent_runs: int = 1
    ) -> None:
        self.session = self._opened(path, _pool(threads, concurrent_runs), spinning)
        self.inputs = tuple(node.name for node in self.session.get_inputs())

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch."""
        arrays = {name: batch.arrays[name] for name in self.inputs}
        return np.asarray(self.session.run(["logits"], arrays)[0], dtype=np.float32)

    def _opened(self, path: Path, threads: int, spinning: bool) -> onnxruntime.InferenceSession:
        return open_session(path, threads=threads, spinning=spinning)


def _pool(threads: int, runs: int) -> int:
    """Return the size of a session's pool, which counts one calling thread; see `open_session`."""
    threads = threads or threads_by_default()
    return threads * runs - (runs - 1) if threads else 0
