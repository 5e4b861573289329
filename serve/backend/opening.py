"""Opening a served model: artifact, tokenizer and runtime become a warm ServedModel.

A graph runs in the backend's process, with a number of threads that suits the bucket
(`AdaptiveThreads`), or as another Triton model in Triton's process (`EncoderPredictor`).
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.hardware import share_of_cores
from bertender.models.onnx_session import ONNX_DATA_NAME, ONNX_NAME, check_tokens
from bertender.models.runtimes import RUNTIMES, check_suits
from bertender.problems import problem_of_task
from bertender.text.batch import Batch, rows_of
from bertender.text.tokenizer import open_tokenizer
from serve.backend.batches import (
    BucketedClassifier,
    ServedModel,
    longest_input_of,
)
from serve.backend.fair_queue import FairQueue, OwnShapes, PaddedShapes
from serve.config import SERVED_RUNTIMES, BackendParameters
from serve.wire import ENCODER_OUTPUT, input_names

if TYPE_CHECKING:  # at run time, this would load PyTorch into the server
    from bertender.models.runtimes import Predictor

logger = logging.getLogger(__name__)

ADAPTING = frozenset({"onnxruntime"})
"""Runtimes whose small buckets were measured to be faster on one thread."""

TOKENS_FOR_ALL_THREADS = 64
"""Least tokens of a bucket, with padding, for which it gets all threads, at MEASURED_BYTES."""
MEASURED_BYTES = 24 * 2**20
"""Size of the measured graph with its weights, a MiniLM in int8."""
MOST_BYTES_TWICE = 128 * 2**20
"""Largest graph, with weights, that is opened twice."""


def open_served_model(
    folder: Path, parameters: BackendParameters, max_batch_size: int, instances: int = 1
) -> ServedModel:
    """Open an artifact, check its digests, and run it once.

    A graph in another Triton model is run there, by its own warm-up.

    Args:
        folder: folder of the artifact.
        parameters: settings of the backend.
        max_batch_size: most texts from which a bucket is chosen.
        instances: copies of the model that share the cores.

    Raises:
        DamagedArtifactError: a file of the artifact is missing or changed.
        RuntimeMissingError: the runtime is not installed.
        ModelError: the runtime or the tokenizer cannot be opened.
    """
    runtime = SERVED_RUNTIMES[parameters.runtime]
    lanes = max(parameters.concurrent_buckets, runtime.buckets_at_once)
    threads = parameters.threads or share_of_cores(parameters.concurrent_buckets * instances)
    tokens = parameters.tokens_per_bucket or runtime.tokens_of_buckets(threads)
    os.environ["RAYON_NUM_THREADS"] = str(threads * parameters.concurrent_buckets)
    artifact = Artifact.load(folder, checked_at=parameters.stamp)
    classifier = open_artifact(artifact, parameters, threads)
    columns = classifier.problem.asked_columns(artifact.card.task.text_columns)
    names = input_names(len(columns), classifier.problem.takes_list)
    # the first call of a transformers tokenizer, which sets it up, is not thread-safe
    classifier.encode([classifier.problem.to_example(("first",) * len(names))])
    if runtime.runs_while_loading:
        warm_up(classifier, len(names), max_batch_size, tokens, lanes)
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # returns memory that loading has freed
    queue = FairQueue(
        parameters.max_queue_texts,
        parameters.queue_timeout_ms / 1000,
        max_batch_size=max_batch_size,
        tokens_per_bucket=tokens,
        small_tokens=small_tokens(classifier, parameters),
        shapes=classifier.shapes,
    )
    labels = np.array([label.encode() for label in artifact.card.task.labels], np.object_)
    return ServedModel(
        classifier,
        labels,
        queue,
        names,
        parameters.max_text_bytes,
        lanes,
        copies=instances,
        abstain_below=parameters.abstain_below,
    )


def open_artifact(
    artifact: Artifact, parameters: BackendParameters, threads: int
) -> BucketedClassifier:
    """Open an ONNX artifact for the endpoint."""
    problem = problem_of_task(artifact.card.task)
    runtime = SERVED_RUNTIMES[parameters.runtime]
    if runtime.in_process:
        check_suits(runtime.in_process, artifact)
    tokenizer = open_tokenizer(artifact.path, parameters.max_length)
    problem, encode = problem.reading(tokenizer), problem.encoder(tokenizer)
    graph = artifact.path / ONNX_NAME
    check_tokens(graph, tokenizer)
    return BucketedClassifier(
        encode,
        open_predictor(graph, parameters, threads),
        problem,
        PaddedShapes(longest_input_of(encode)) if runtime.compiles_shapes(graph) else OwnShapes(),
    )


def small_tokens(classifier: BucketedClassifier, parameters: BackendParameters) -> int:
    """Return the token limit of small buckets; 0 where buckets do not run concurrently.

    Without small buckets next to it, a long text of one caller delays the short texts of all others
    by a hundred milliseconds and more. ONNX Runtime can run several buckets in one session; other
    runtimes reserve memory for each concurrent run.
    """
    if isinstance(classifier.predictor, AdaptiveThreads):
        return classifier.predictor.tokens_for_all
    in_process = SERVED_RUNTIMES[parameters.runtime].in_process
    return TOKENS_FOR_ALL_THREADS if in_process in ADAPTING else 0


def open_predictor(graph: Path, parameters: BackendParameters, threads: int) -> Predictor:
    """Open a graph in the runtime that serves it.

    Args:
        graph: file of the graph.
        parameters: settings of the backend.
        threads: most threads of a run.
    """
    runtime = SERVED_RUNTIMES[parameters.runtime]
    if runtime.in_process is None:
        return EncoderPredictor(parameters.encoder or "", parameters.encoder_inputs)
    # spinning threads take cores from the server, which cost half the throughput
    open_graph = partial(
        RUNTIMES[runtime.in_process].open,
        graph,
        spinning=False,
        concurrent_runs=parameters.concurrent_buckets,
    )
    if parameters.threads == 0 and runtime.in_process in ADAPTING:
        return adaptive(open_graph, graph, threads)
    return open_graph(threads)


def adaptive(open_graph: Callable[[int], Predictor], graph: Path, threads: int) -> Predictor:
    """Open a graph for several threads, and also for one thread where that pays off.

    Args:
        open_graph: opens the graph for a number of threads.
        graph: file of the graph.
        threads: most threads of a run.
    """
    several = open_graph(threads)
    files = (graph, graph.with_name(ONNX_DATA_NAME))
    size_bytes = sum(file.stat().st_size for file in files if file.is_file())
    if threads == 1 or size_bytes > MOST_BYTES_TWICE:
        return several
    share = min(1.0, MEASURED_BYTES / max(size_bytes, 1))
    return AdaptiveThreads(open_graph(1), several, int(TOKENS_FOR_ALL_THREADS * share))


class EncoderPredictor:
    """A Triton model that takes token arrays and returns logits: business logic scripting (BLS).

    It is thread-safe. It cannot run before Triton has loaded all models, which is after
    `initialize`.

    Args:
        model: name of the model.
        inputs: names of its inputs.
    """

    def __init__(self, model: str, inputs: Sequence[str]) -> None:
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        self.model = model
        self.inputs = inputs
        # outputs as NumPy arrays, even if the model runs on a GPU
        self.memory = self.triton.PreferredMemory(self.triton.TRITONSERVER_MEMORY_CPU, 0)

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch.

        Raises:
            ModelError: the model fails, or is not loaded.
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
        # copied, since the response owns its memory
        return np.array(tensor.as_numpy(), dtype=np.float32)


class AdaptiveThreads:
    """A predictor on a graph opened twice: small buckets run on one thread, larger ones on all.

    Idle threads must be woken for every shared operator, which takes longer than the work on a few
    tokens. One caller of single texts had 323 texts/s with one thread and 243 with two; four
    callers of 16 texts had 434 with one and 523 with two. A larger model has more work per token,
    so that all threads pay off for fewer tokens.

    In ONNX Runtime the number of threads belongs to the session, and Python cannot share prepared
    weights between sessions, so a small model is in memory twice. A large model is not: its runs
    are long enough for all threads.

    Args:
        one: predictor with one thread.
        several: predictor with all threads.
        tokens_for_all: least tokens of a bucket, with padding, that runs on all threads.
    """

    def __init__(self, one: Predictor, several: Predictor, tokens_for_all: int) -> None:
        self.one = one
        self.several = several
        self.tokens_for_all = tokens_for_all

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a bucket."""
        is_small = batch.arrays["attention_mask"].size < self.tokens_for_all
        return (self.one if is_small else self.several).logits(batch)


SHORTEST = 8
WARM_UP_LIMIT_S = 1.0
"""Limit of the warm-up in seconds: a slow model gains the least from it, and takes the longest."""


def warm_up(
    classifier: BucketedClassifier,
    text_columns: int,
    most_texts: int,
    tokens_per_bucket: int,
    lanes: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Classify one text, then run full buckets of all lengths, for at most a second.

    A runtime reserves memory and prepares itself at the first input of a size. The warm-up does
    that at the start, for sizes of all buckets, instead of while a request waits. If small buckets
    have their own thread, the largest small bucket comes first. If buckets have few shapes, the
    others follow while time is left. If buckets run concurrently, so do those of the warm-up, since
    each reserves its own memory.

    Args:
        classifier: the model.
        text_columns: texts per example.
        most_texts: most texts of a batch.
        tokens_per_bucket: most tokens of a bucket.
        lanes: number of buckets that run concurrently.
        clock: returns seconds.

    Raises:
        ModelError: the model fails at a length that its tokenizer allows.
    """
    start = clock()
    problem, texts = classifier.problem, ("warm up",) * text_columns
    example = problem.to_example(texts)
    classifier.run(classifier.encode([example]))
    edge = problem.edge_examples([example], classifier.longest_input)
    encoded = classifier.encode([edge[1]])
    row = int(encoded.arrays["attention_mask"].sum(axis=1).argmax())
    long = rows_of(encoded, [row])
    longest = long.arrays["attention_mask"].shape[1]
    # full buckets, which take the most memory, then the other padded shapes
    shapes = [
        *bucket_shapes(tokens_per_bucket, longest, most_texts),
        *classifier.shapes.every(tokens_per_bucket, most_texts),
    ]
    if isinstance(adaptive := classifier.predictor, AdaptiveThreads):
        shapes.insert(0, (1, min(adaptive.tokens_for_all - 1, longest)))
    with ThreadPoolExecutor(lanes) as pool:
        for rows, length in shapes:
            if clock() - start > WARM_UP_LIMIT_S:
                logger.info("no time for %d texts of %d tokens, and what follows", rows, length)
                return
            cut = {
                name: np.repeat(array[:, :length], rows, axis=0)
                for name, array in long.arrays.items()
            }
            full = Batch(long.examples * rows, cut)
            try:
                list(pool.map(classifier.predictor.logits, [full] * lanes))
            except Exception as error:  # runtimes' exceptions have no common base class
                raise ModelError(
                    f"the model fails at {rows} texts of {length} tokens, though its tokenizer "
                    f"allows {longest}: {error}. Set a shorter --max-length, or export it again."
                ) from None


def bucket_shapes(
    tokens_per_bucket: int, longest: int, most_texts: int
) -> Iterator[tuple[int, int]]:
    """Yield texts and tokens of full buckets, at lengths that double up to the longest.

    Inputs that are longer than a bucket are left out: they take the most memory, and may never
    come.
    """
    longest = min(longest, tokens_per_bucket)
    lengths = [SHORTEST]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    for length in (*lengths[:-1], longest):
        yield max(1, min(most_texts, tokens_per_bucket // length)), length
