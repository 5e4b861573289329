"""What runs buckets, behind the one method `Predictor.logits`.

A runtime of SERVED_RUNTIMES runs them in the process of the backend, or, as another Triton model,
in the process of Triton. With how many threads, and padded to which shapes, is decided here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.models.onnx_session import ONNX_DATA_NAME
from bertender.models.runtimes import RUNTIMES
from bertender.text.batch import Batch
from serve.config import SERVED_RUNTIMES, BackendParameters

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.runtimes import Predictor

ENCODER_OUTPUT = "logits"
"""Output of the Triton model that runs the graph."""

ADAPTING = frozenset({"onnxruntime"})
"""Rows of RUNTIMES whose small buckets are faster on one thread, as far as it was measured."""


def open_predictor(graph: Path, parameters: BackendParameters, threads: int) -> Predictor:
    """Open a graph in the runtime that serves it.

    Args:
        graph: its file.
        parameters: of the backend.
        threads: of one run, at most.
    """
    runtime = SERVED_RUNTIMES[parameters.runtime]
    if runtime.in_process is None:
        return EncoderPredictor(parameters.encoder or "", parameters.encoder_inputs)
    # spinning threads take the cores that the server needs: it cost half the throughput
    open_graph = partial(
        RUNTIMES[runtime.in_process].open,
        graph,
        spinning=False,
        concurrent_runs=parameters.concurrent_buckets,
    )
    if parameters.threads == 0 and runtime.in_process in ADAPTING:
        return adaptive(open_graph, graph, threads)
    return open_graph(threads)


class EncoderPredictor:
    """A Triton model that takes token arrays and returns logits: business logic scripting (BLS).

    Several threads may call it. It cannot run before Triton has loaded all models, which is after
    `initialize`.

    Args:
        model: its name.
        inputs: their names.
    """

    def __init__(self, model: str, inputs: Sequence[str]) -> None:
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        self.model = model
        self.inputs = inputs
        # arrays of numpy are wanted, wherever the model runs
        self.memory = self.triton.PreferredMemory(self.triton.TRITONSERVER_MEMORY_CPU, 0)

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch.

        Raises:
            ModelError: the model cannot run it, or is not loaded.
        """
        response = self.triton.InferenceRequest(
            model_name=self.model,
            requested_output_names=[ENCODER_OUTPUT],
            inputs=[self.triton.Tensor(name, batch.arrays[name]) for name in self.inputs],
            preferred_memory=self.memory,
        ).exec()
        if response.has_error():
            raise ModelError(f"model {self.model!r}: {response.error().message()}")
        tensor = self.triton.get_output_tensor_by_name(response, ENCODER_OUTPUT)
        # a copy: the response's memory goes with the response
        return np.array(tensor.as_numpy(), dtype=np.float32)


TOKENS_FOR_ALL_THREADS = 64
"""Tokens of a bucket, padding included, from which on it has all threads, at MEASURED_BYTES."""
MEASURED_BYTES = 24 * 2**20
"""Size of the measured graph with its weights, a MiniLM in int8."""
MOST_BYTES_TWICE = 128 * 2**20
"""Largest graph, weights included, that is opened twice."""


class AdaptiveThreads:
    """A predictor of a graph that is opened for one thread and for several: small buckets run on
    one, larger ones on all, so that each wakes as many threads as pay off.

    Threads that sleep between runs have to be woken for every operator that they share, which takes
    longer than the work on a few tokens. One caller of single texts had 323 texts/s with one thread
    where two gave 243; four callers of 16 texts had 523 with two where one gave 434. A token is
    more work for a larger model, which has all threads from fewer tokens on.

    ONNX Runtime has no threads of one run but those of its session, and Python cannot share
    prepared weights between sessions. So a small model is in memory twice. A large one is not: its
    runs are long enough for all threads anyway.

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


TOKENS = 8
"""Padded buckets have a multiple of it."""
AXES_OF_EXAMPLES = 2
"""Axes of logits (batch, labels); logits of tokens have one more."""


@dataclass(frozen=True)
class OwnShapes:
    """Every bucket has the shape of its texts."""

    def rows(self, texts: int) -> int:
        """Return the rows of a bucket of at least one text."""
        return texts

    def tokens(self, longest: int) -> int:
        """Return the tokens of each row, by those of the longest text."""
        return longest

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket in its shape."""
        return bucket

    def without_padding(
        self, logits: npt.NDArray[np.float32], bucket: Batch
    ) -> npt.NDArray[np.float32]:
        """Return the logits of a bucket, of each example or of each token, by its own shape."""
        rows, tokens = bucket.arrays["attention_mask"].shape
        return logits[:rows] if logits.ndim == AXES_OF_EXAMPLES else logits[:rows, :tokens]

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield rows and tokens of shapes that are worth a run before the first request."""
        yield from ()


@dataclass(frozen=True)
class PaddedShapes(OwnShapes):
    """Buckets are padded to 1, 2, 3, 4, 6, 8, 12, 16, ... rows, and to multiples of 8 tokens.

    A server merges requests, so nearly every bucket has another number of texts and tokens than
    those before it. Where a runtime compiles a graph for each shape when it first comes, that takes
    longer than padding to a shape that has come already.
    """

    longest_input: int
    """Most tokens that the model reads."""

    def rows(self, texts: int) -> int:
        power = 1 << (texts - 1).bit_length()
        return power * 3 // 4 if texts <= power * 3 // 4 else power

    def tokens(self, longest: int) -> int:
        return max(longest, min(-(-longest // TOKENS) * TOKENS, self.longest_input))

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket with rows and columns of zeros added, which the mask hides."""
        rows, tokens = bucket.arrays["attention_mask"].shape
        added = ((0, self.rows(rows) - rows), (0, self.tokens(tokens) - tokens))
        arrays = {name: np.pad(array, added) for name, array in bucket.arrays.items()}
        return Batch(bucket.examples, arrays)

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield all that a bucket can have, with few rows first: most requests have few texts."""
        longest = min(self.longest_input, tokens_per_bucket)
        lengths = dict.fromkeys(self.tokens(least) for least in range(1, longest + 1, TOKENS))
        rows = dict.fromkeys(map(self.rows, takewhile(lambda each: each <= most_texts, count(1))))
        for each in rows:
            yield from ((each, length) for length in lengths if each * length <= tokens_per_bucket)
