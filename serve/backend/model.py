"""The Python backend of the Triton model `classifier`: text in; label, score and logits out.

Triton hands requests over as they come. `execute` reads them and puts them into a queue of its own,
which is bounded; a thread takes as many as make a batch, runs them together, and responds request
by request (see `batches`). A request that cannot be read, or that finds the queue full, gets an
error of its own at once; the others do not notice.

Triton starts this class in a Python process of its own (the stub). Neither PyTorch nor transformers
is loaded there.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import struct
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
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
    Refusal,
    Request,
    RequestQueue,
    longest_input_of,
    predictions,
    warm_up,
)
from serve.backend.metrics import QUEUE_FULL, QUEUE_TIMEOUT, REASONS, MetricsThread, Tally
from serve.backend.running import OwnShapes, PaddedShapes, bucket_runner, open_predictor
from serve.config import SERVED_RUNTIMES, BackendParameters
from serve.server.supervisor import STUB_NAME
from serve.wire import (
    CANDIDATE_PREFIX,
    CANDIDATE_SUFFIX,
    IN_FLIGHT_PREFIX,
    INPUT_NAMES,
    WORKSPACE_VARIABLE,
    asks_for_truncation,
    from_arrays,
)

LOOK_FOR_CANCELLATION_S = 0.005
"""A shorter wait asks nothing: asking Triton costs a message to its process and back."""

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
        artifact = Artifact.load(folder, checked_at=self.parameters.stamp)
        self.labels = np.array([label.encode() for label in artifact.card.task.labels], np.object_)
        self.input_names = INPUT_NAMES[: len(artifact.card.task.text_columns)]
        self.classifier = open_artifact(artifact, self.parameters, threads)
        if SERVED_RUNTIMES[self.parameters.runtime].runs_while_loading:
            warm_up(self.classifier, len(self.input_names), self.max_batch_size)
        with suppress(AttributeError):  # of another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)  # give back what loading has freed
        workspace = os.environ.get(WORKSPACE_VARIABLE)
        mark_candidate(workspace, config["name"])
        self.queue = RequestQueue(
            self.parameters.max_queue_texts, self.parameters.queue_timeout_ms / 1000
        )
        self.in_flight = InFlight(workspace)
        self.tally = self.classifier.tally = Tally()
        labels = {"model": config["name"], "version": args["model_version"]}
        self.metrics = MetricsThread(self.triton, labels, self.tally, lambda: self.queue.texts)
        self.worker = threading.Thread(target=self._work, name="classifier", daemon=True)
        self.worker.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Take requests on, or refuse them; each gets its response through its sender."""
        self.in_flight.add(len(requests))
        for each in requests:
            sender, request = each.get_response_sender(), self._read(each)
            if isinstance(request, Refusal):
                self._reject(sender, request)
                continue
            request.of_triton, request.sender = each, sender
            if not self.queue.offer(request):
                reason = (
                    f"the queue is full: {self.queue.max_texts} texts wait at most. Send it again "
                    "later."
                )
                self._reject(sender, Refusal("UNAVAILABLE", reason), QUEUE_FULL)
        self._reject_late()

    def finalize(self) -> None:
        """Respond to what still waits, and stop."""
        self.queue.close()
        self.worker.join()
        self.classifier.runner.close()
        self.metrics.stop()

    def _read(self, request: Any) -> Request | Refusal:
        try:
            inputs = [
                self.triton.get_input_tensor_by_name(request, name).as_numpy()
                for name in self.input_names
            ]
            truncate = asks_for_truncation(request.parameters())
            texts = from_arrays(inputs, self.parameters.max_text_bytes)
            examples = tuple(map(self.classifier.problem.to_example, texts))
        except DataError as error:
            return Refusal("INVALID_ARG", str(error))
        except Exception as error:  # of one request; the others of this call must not notice
            return Refusal("INTERNAL", f"the request cannot be read: {error}")
        most = CHARACTERS_OF_TOKEN * self.classifier.longest_input
        characters = sum(min(most, sum(map(len, example))) for example in examples)
        return Request(examples, truncate, characters)

    def _work(self) -> None:
        """Classify batch after batch. An error here would leave everybody waiting: it ends the
        process, and the supervisor reports that."""
        try:
            while taken := self.queue.take(self.max_batch_size):
                started = time.perf_counter()
                wanted = [each for each in taken if self._is_wanted(each)]
                results = predictions(self.classifier, wanted, self.labels)
                for request, result in zip(wanted, results, strict=True):
                    if isinstance(result, Refusal):
                        self._reject(request.sender, result)
                    else:
                        tensors = [self.triton.Tensor(*each) for each in result.items()]
                        self._send(request.sender, output_tensors=tensors)
                if wanted:
                    seconds = time.perf_counter() - started
                    self.tally.batch(sum(len(each.examples) for each in wanted), seconds)
                    self.queue.measured(sum(each.characters for each in wanted), seconds)
                self._reject_late()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _is_wanted(self, request: Request) -> bool:
        """Return whether the client is still there; one that has gone gets an error all the same,
        because Triton waits for a response to every request."""
        waited_s = self.queue.clock() - request.since
        self.tally.wait(waited_s)
        if waited_s < LOOK_FOR_CANCELLATION_S or not request.of_triton.is_cancelled():
            return True
        self._reject(request.sender, CANCELLED)
        return False

    def _reject_late(self) -> None:
        for late in self.queue.expired():
            self.tally.wait(self.queue.clock() - late.since)
            reason = (
                f"the request has waited for over {self.parameters.queue_timeout_ms:g} ms in the "
                "queue. Send it again later."
            )
            self._reject(late.sender, Refusal("UNAVAILABLE", reason), QUEUE_TIMEOUT)

    def _reject(self, sender: Any, refusal: Refusal, reason: str | None = None) -> None:
        self.tally.rejection(reason or REASONS[refusal.code])
        code = getattr(self.triton.TritonError, refusal.code)
        self._send(sender, error=self.triton.TritonError(refusal.reason, code))

    def _send(self, sender: Any, **content: Any) -> None:
        response = self.triton.InferenceResponse(**content)
        sender.send(response, flags=self.triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.in_flight.add(-1)


def open_artifact(
    artifact: Artifact, parameters: BackendParameters, threads: int
) -> BucketedClassifier:
    """Open an ONNX artifact as the endpoint runs it."""
    problem = PROBLEMS[artifact.card.task.problem_type]
    runtime = SERVED_RUNTIMES[parameters.runtime]
    if runtime.in_process:
        check_suits(runtime.in_process, artifact)
    tokenizer = open_tokenizer(artifact.path, parameters.max_length)
    encode = problem.encoder(tokenizer)
    graph = artifact.path / ONNX_NAME
    check_tokens(graph, tokenizer)
    return BucketedClassifier(
        encode,
        open_predictor(graph, parameters, threads),
        len(artifact.card.task.labels),
        parameters.tokens_per_bucket,
        problem,
        bucket_runner(max(parameters.concurrent_buckets, runtime.buckets_at_once)),
        PaddedShapes(longest_input_of(encode)) if runtime.compiles_shapes(graph) else OwnShapes(),
    )


COUNT = struct.Struct("=Q")


class InFlight:
    """The requests of one stub that have no response yet, where the supervisor reads them when the
    server stops: a file of 8 bytes in the server's workspace. Several threads may count.

    Triton itself waits, when it stops, until its HTTP connections are closed, idle ones included,
    or its time is up.

    Args:
        workspace: folder for the file; without one, nothing is written.
    """

    def __init__(self, workspace: str | None) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._bytes: bytearray | mmap.mmap = bytearray(COUNT.size)
        if workspace:
            path = Path(workspace, f"{IN_FLIGHT_PREFIX}{os.getpid()}")
            path.write_bytes(bytes(COUNT.size))
            with path.open("r+b") as file:
                self._bytes = mmap.mmap(file.fileno(), COUNT.size)

    def add(self, requests: int) -> None:
        """Count requests that came, or, below 0, those that have got their response."""
        with self._lock:
            self.count += requests
            COUNT.pack_into(self._bytes, 0, self.count)


def mark_candidate(workspace: str | None, model: str) -> None:
    """Mark this process in the server's workspace where its model is a candidate, which may die.

    The process of a model that has died has no command line any more that would tell which it was.
    """
    if not workspace:
        return
    mark = Path(workspace, f"{CANDIDATE_PREFIX}{os.getpid()}")
    if model.endswith(CANDIDATE_SUFFIX):
        mark.touch()
    else:
        mark.unlink(missing_ok=True)  # numbers of processes are used again


REGION_WORD = 1
"""Index among a stub's arguments: the name of its region in shared memory."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's folder, nothing is made here


def close_region(command: bytes, folder: Path = SHARED_MEMORY) -> None:
    """Let no other user read a stub's region of shared memory, before it has a text.

    `bertender serve` makes it so from the start; another Triton does not. A later version may name
    the region in another place: nothing but a file of the folder is closed.

    Args:
        command: the stub's program and arguments, each with a zero byte at its end.
        folder: of the regions.
    """
    program, *words = map(os.fsdecode, command.split(b"\0"))
    if Path(program).name != STUB_NAME or len(words) <= REGION_WORD:
        return
    name = words[REGION_WORD].removeprefix("/")
    with suppress(OSError):  # it has gone, or is of another user
        if "/" not in name and (folder / name).is_file():
            (folder / name).chmod(0o600)
