"""The Python backend of the Triton model `classifier`: text in; label, score and logits out.

Triton hands requests over as they come. The backend reads them and puts them into a queue of its
own, which is bounded; a thread takes as many as fit a batch, tokenises them together, runs them in
buckets of similar length, and responds request by request. A request that cannot be read, or that
finds the queue full, gets an error of its own at once; the others do not notice.

Triton starts this class in a Python process of its own (the stub). Neither PyTorch nor transformers
is loaded there.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.core.hardware import share_of_cores
from bertender.models.onnx_session import ONNX_NAME, check_tokens
from bertender.models.runtimes import check_suits
from bertender.problems import PROBLEMS
from bertender.text.tokenizer import open_tokenizer
from serve.backend.batches import (
    BucketedClassifier,
    Predictions,
    Reading,
    Refusal,
    RequestQueue,
    RunTime,
    Waiting,
    longest_input_of,
    predictions,
    warm_up,
)
from serve.backend.in_flight import WORKSPACE_VARIABLE, InFlight, mark_candidate
from serve.backend.metrics import (
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    REASONS,
    MeasuredPredictor,
    MetricsThread,
    Tally,
)
from serve.backend.running import SERVED_RUNTIMES, Opening, OwnShapes, PaddedShapes, bucket_runner
from serve.config import BackendParameters
from serve.repository.placing import load_checked
from serve.server.shared_memory import close_region
from serve.wire import INPUT_NAMES, TRUNCATED, asks_for_truncation, from_arrays

LOOK_FOR_CANCELLATION_S = 0.005
"""Of waiting: asking Triton costs a message to its process and back."""

CHARACTERS_OF_TOKEN = 6
"""At most, about: what an example has beyond the model's input is cut, and costs little."""

CANCELLED = Refusal("CANCELLED", "the client has gone")


class TritonPythonModel:
    """Python backend of Triton: `initialize` once an instance, `execute` once a merged batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact, its digests checked, and run it, so that loading proves it.

        What another Triton model runs is proved there, by its own warm-up.

        Raises:
            DamagedArtifactError: a file of the artifact is missing or changed.
            RuntimeMissingError: the runtime is not installed.
            ModelError: the runtime or the tokenizer cannot open it.
        """
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        close_region(Path("/proc/self/cmdline").read_bytes())
        config = json.loads(args["model_config"])
        self.parameters = BackendParameters.from_model_config(config)
        self.max_batch_size = int(config["max_batch_size"])
        at_once = self.parameters.concurrent_buckets
        runs = at_once * int(config["instance_group"][0]["count"])
        threads = self.parameters.threads or share_of_cores(runs)
        os.environ["RAYON_NUM_THREADS"] = str(threads * at_once)  # no bucket runs meanwhile
        folder = Path(args["model_repository"], args["model_version"], self.parameters.artifact)
        artifact = load_checked(folder, self.parameters.stamp)
        self.labels = np.array([label.encode() for label in artifact.card.task.labels], np.object_)
        self.input_names = INPUT_NAMES[: len(artifact.card.task.text_columns)]
        self.classifier = open_artifact(artifact, self.parameters, threads)
        if SERVED_RUNTIMES[self.parameters.runtime].runs_while_loading:
            warm_up(self.classifier, len(self.input_names), self.max_batch_size)
        _release_memory()
        mark_candidate(os.environ.get(WORKSPACE_VARIABLE), config["name"])
        self._start_worker({"model": config["name"], "version": args["model_version"]})

    def execute(self, requests: Sequence[Any]) -> None:
        """Take requests on, or refuse them; each gets its response through its sender."""
        self.in_flight.add(len(requests))
        for request in requests:
            sender, reading = request.get_response_sender(), self._read(request)
            if isinstance(reading, Refusal):
                self._reject(sender, reading)
            elif not self._offer(_Pending(request, sender, reading)):
                self._reject(sender, self._full, QUEUE_FULL)
        self._reject_late()

    def finalize(self) -> None:
        """Respond to what still waits, and stop."""
        self.queue.close()
        self.worker.join()
        self.classifier.runner.close()
        self.metrics.stop()

    def _start_worker(self, labels: Mapping[str, str]) -> None:
        most, timeout_ms = self.parameters.max_queue_texts, self.parameters.queue_timeout_ms
        self.queue = RequestQueue[_Pending](most, timeout_ms / 1000)
        self.run_time = RunTime()
        self.in_flight = InFlight(os.environ.get(WORKSPACE_VARIABLE))
        self._full = Refusal(
            "UNAVAILABLE", f"the queue is full: {most} texts wait at most. Send it again later."
        )
        self._late = Refusal(
            "UNAVAILABLE",
            f"the request has waited for over {timeout_ms:g} ms in the queue. Send it again later.",
        )
        self.tally = Tally()
        self.classifier.predictor = MeasuredPredictor(self.classifier.predictor, self.tally)
        self.metrics = MetricsThread(self.triton, labels, self.tally, lambda: self.queue.texts)
        self.worker = threading.Thread(target=self._work, name="classifier", daemon=True)
        self.worker.start()

    def _work(self) -> None:
        """Classify batch after batch. An error here would leave everybody waiting: it ends the
        process, and the supervisor reports that."""
        try:
            while waiting := self.queue.take(self.max_batch_size, self._most_characters):
                started = time.perf_counter()
                wanted = [each for each in waiting if self._is_wanted(each)]
                self._classify([each.request for each in wanted])
                if wanted:
                    seconds = time.perf_counter() - started
                    self.tally.batch(sum(each.texts for each in wanted), seconds)
                    self.run_time.measured(sum(each.characters for each in wanted), seconds)
                self._reject_late()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _offer(self, pending: _Pending) -> bool:
        reading, most = pending.reading, CHARACTERS_OF_TOKEN * self.classifier.longest_input
        return self.queue.offer(pending, len(reading.examples), reading.characters(most))

    def _most_characters(self) -> float:
        """Return how long a batch may be: it takes no longer than a request may wait.

        Without that, a queue of requests that have waited for nearly as long as they may would run
        as one batch, and all of them would be late.
        """
        timeout_s = self.queue.timeout_s or math.inf
        return self.run_time.characters_within(timeout_s)

    def _is_wanted(self, waiting: Waiting[_Pending]) -> bool:
        """Return whether the client is still there; one that has gone gets an error all the same,
        because Triton waits for a response to every request."""
        waited_s = self.queue.clock() - waiting.since
        self.tally.wait(waited_s)
        if waited_s < LOOK_FOR_CANCELLATION_S or not waiting.request.request.is_cancelled():
            return True
        self._reject(waiting.request.sender, CANCELLED)
        return False

    def _classify(self, pending: Sequence[_Pending]) -> None:
        readings = [each.reading for each in pending]
        results = predictions(self.classifier, readings, self.labels)
        for each, result in zip(pending, results, strict=True):
            if isinstance(result, Refusal):
                self._reject(each.sender, result)
            else:
                self._send(each.sender, output_tensors=self._tensors(each.reading, result))

    def _reject_late(self) -> None:
        for late in self.queue.expired():
            self.tally.wait(self.queue.clock() - late.since)
            self._reject(late.request.sender, self._late, QUEUE_TIMEOUT)

    def _read(self, request: Any) -> Reading | Refusal:
        tensor_of = self.triton.get_input_tensor_by_name
        try:
            inputs = [tensor_of(request, name).as_numpy() for name in self.input_names]
            truncate = asks_for_truncation(request.parameters())
            texts = from_arrays(inputs, self.parameters.max_text_bytes)
            to_example = self.classifier.problem.endpoint.to_example
            return Reading(tuple(map(to_example, texts)), truncate)
        except DataError as error:
            return Refusal("INVALID_ARG", str(error))
        except Exception as error:  # of one request; the others of this call must not notice
            return Refusal("INTERNAL", f"the request cannot be read: {error}")

    def _reject(self, sender: Any, refusal: Refusal, reason: str | None = None) -> None:
        self.tally.rejection(reason or REASONS[refusal.code])
        code = getattr(self.triton.TritonError, refusal.code)
        self._send(sender, error=self.triton.TritonError(refusal.reason, code))

    def _send(self, sender: Any, **content: Any) -> None:
        response = self.triton.InferenceResponse(**content)
        sender.send(response, flags=self.triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.in_flight.add(-1)

    def _tensors(self, reading: Reading, result: Predictions) -> list[Any]:
        truncated = {TRUNCATED: result.truncated[:, None]} if reading.truncate else {}
        arrays = {**result.tensors, **truncated}
        return [self.triton.Tensor(name, array) for name, array in arrays.items()]


@dataclass(frozen=True)
class _Pending:
    """A request that waits for its response."""

    request: Any
    sender: Any
    reading: Reading


def _release_memory() -> None:
    """Give back to the system what loading has freed, which glibc would hold for later."""
    with suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).malloc_trim(0)


def open_artifact(
    artifact: Artifact, parameters: BackendParameters, threads: int
) -> BucketedClassifier:
    """Open an ONNX artifact as the endpoint runs it."""
    problem = PROBLEMS[artifact.card.task.problem_type]
    runtime = SERVED_RUNTIMES[parameters.runtime]
    if runtime.in_process:
        check_suits(runtime.in_process, artifact)
    tokenizer = open_tokenizer(artifact.path, parameters.max_length)
    encode = problem.encoder(tokenizer, None)
    graph = artifact.path / ONNX_NAME
    padded = PaddedShapes(longest_input_of(encode))
    opening = Opening(
        graph,
        threads,
        adapts_threads=parameters.threads == 0,
        concurrent_buckets=parameters.concurrent_buckets,
        encoder=parameters.encoder,
        encoder_inputs=parameters.encoder_inputs,
    )
    check_tokens(graph, tokenizer)
    return BucketedClassifier(
        encode,
        runtime.open(opening),
        len(artifact.card.task.labels),
        parameters.tokens_per_bucket,
        problem,
        bucket_runner(max(parameters.concurrent_buckets, runtime.buckets_at_once)),
        padded if runtime.compiles_shapes(graph) else OwnShapes(),
    )
