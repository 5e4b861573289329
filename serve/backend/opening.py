"""The opening of a served model: artifact, tokenizer and runtime become a ServedModel."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from bertender.core.artifact import Artifact
from bertender.core.hardware import share_of_cores
from bertender.models.onnx_session import ONNX_NAME, check_tokens
from bertender.models.runtimes import check_suits
from bertender.problems import problem_of_task
from bertender.text.tokenizer import open_tokenizer
from serve.backend.batches import BucketedClassifier, ServedModel, longest_input_of, warm_up
from serve.backend.fair_queue import FairQueue
from serve.backend.running import (
    ADAPTING,
    TOKENS_FOR_ALL_THREADS,
    AdaptiveThreads,
    OwnShapes,
    PaddedShapes,
    open_predictor,
)
from serve.config import SERVED_RUNTIMES, BackendParameters
from serve.wire import input_names


def open_served_model(
    folder: Path, parameters: BackendParameters, max_batch_size: int, instances: int = 1
) -> ServedModel:
    """Open an artifact, its digests checked, and run it, so that opening proves it.

    What another Triton model runs is proved there, by its own warm-up.

    Args:
        folder: of the artifact.
        parameters: settings of the backend.
        max_batch_size: most texts that a bucket is chosen from.
        instances: copies of the model that share the cores.

    Raises:
        DamagedArtifactError: a file of the artifact is missing or changed.
        RuntimeMissingError: the runtime is not installed.
        ModelError: the runtime or the tokenizer cannot open it.
    """
    runtime = SERVED_RUNTIMES[parameters.runtime]
    lanes = max(parameters.concurrent_buckets, runtime.buckets_at_once)
    threads = parameters.threads or share_of_cores(parameters.concurrent_buckets * instances)
    os.environ["RAYON_NUM_THREADS"] = str(threads * parameters.concurrent_buckets)
    artifact = Artifact.load(folder, checked_at=parameters.stamp)
    classifier = open_artifact(artifact, parameters, threads)
    columns = classifier.problem.asked_columns(artifact.card.task.text_columns)
    names = input_names(len(columns), classifier.problem.takes_list)
    # a tokenizer of transformers sets itself up in its first call, which no two threads may do
    classifier.encode([classifier.problem.to_example(("first",) * len(names))])
    if runtime.runs_while_loading:
        warm_up(classifier, len(names), max_batch_size, parameters.tokens_per_bucket, lanes)
    with suppress(AttributeError):  # of another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # give back what loading has freed
    queue = FairQueue(
        parameters.max_queue_texts,
        parameters.queue_timeout_ms / 1000,
        max_batch_size=max_batch_size,
        tokens_per_bucket=parameters.tokens_per_bucket,
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
        abstain_below=parameters.abstain_below,
    )


def open_artifact(
    artifact: Artifact, parameters: BackendParameters, threads: int
) -> BucketedClassifier:
    """Open an ONNX artifact as the endpoint runs it."""
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
    """Return the tokens from which on a bucket is not small; 0 where none runs beside another.

    Without small buckets beside it, one long text of one caller keeps short ones of all others
    waiting for a hundred milliseconds and more. ONNX Runtime runs several at once in one
    session; other runtimes reserve what they need for each run that may happen at once.
    """
    if isinstance(classifier.predictor, AdaptiveThreads):
        return classifier.predictor.tokens_for_all
    in_process = SERVED_RUNTIMES[parameters.runtime].in_process
    return TOKENS_FOR_ALL_THREADS if in_process in ADAPTING else 0
