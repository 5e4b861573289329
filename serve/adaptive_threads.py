"""Small buckets on one thread, larger ones on all: each wakes as many threads as pay off.

Threads that sleep between runs have to be woken for every operator that they share, which takes
longer than the work on a few tokens. One caller of single texts had 323 texts/s with one thread
where two gave 243; four callers of 16 texts had 523 with two where one gave 434. A token is more
work for a larger model, which has all threads from fewer tokens on.

ONNX Runtime has no threads of one run but those of its session, and Python cannot share prepared
weights between sessions. So a small model is in memory twice. A large one is not: its runs are long
enough for all threads anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.models.onnx_predictor import ONNX_DATA_NAME
from bertender.text.batch import Batch

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.predictor import Predictor

__all__ = [
    "MEASURED_BYTES",
    "MOST_BYTES_TWICE",
    "TOKENS_FOR_ALL_THREADS",
    "AdaptiveThreads",
    "adaptive",
]

TOKENS_FOR_ALL_THREADS = 64
"""Tokens of a bucket, padding included, from which on it has all threads, at MEASURED_BYTES."""

MEASURED_BYTES = 24 * 2**20
"""Of the graph of that measurement with its weights, a MiniLM in int8."""

MOST_BYTES_TWICE = 128 * 2**20
"""Of a graph with its weights, which is opened twice."""


class AdaptiveThreads:
    """A predictor of a graph that is opened for one thread and for several.

    Args:
        one: its runs have one thread.
        several: its runs have all.
        tokens_for_all: tokens of a bucket, padding included, from which on it has all threads.
    """

    def __init__(self, one: Predictor, several: Predictor, tokens_for_all: int) -> None:
        self.one = one
        self.several = several
        self.tokens_for_all = tokens_for_all

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a bucket."""
        is_small = batch.arrays["attention_mask"].size < self.tokens_for_all
        return (self.one if is_small else self.several).logits(batch)


def adaptive(open_graph: Callable[[int], Predictor], graph: Path, threads: int) -> Predictor:
    """Open a graph for so many threads, and for one as well where that pays off.

    Args:
        open_graph: opens it, for a number of threads.
        graph: its file.
        threads: most of one run.
    """
    several = open_graph(threads)
    files = (graph, graph.with_name(ONNX_DATA_NAME))
    size_bytes = sum(file.stat().st_size for file in files if file.is_file())
    if threads == 1 or size_bytes > MOST_BYTES_TWICE:
        return several
    share = min(1.0, MEASURED_BYTES / max(size_bytes, 1))
    return AdaptiveThreads(open_graph(1), several, int(TOKENS_FOR_ALL_THREADS * share))
