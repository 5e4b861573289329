"""The backend answers each request of a merged batch by itself, with Triton's side stood in for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.core.hardware import share_of_cores, usable_cores
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Example
from serve.backend.model import TritonPythonModel
from serve.config import ServeConfig
from tests.serve.triton_stand_in import (
    SENT,
    Request,
    TritonError,
    request_of,
    responses_of,
    running_backend,
)

MAX_LENGTH = 20


@pytest.fixture(params=[1, 3], ids=["one by one", "three at once"])
def backend(
    onnx_artifact: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[TritonPythonModel]:
    """A backend whose buckets run one after another, or at once: nothing else differs."""
    settings = {"max_length": MAX_LENGTH, "max_text_bytes": 200, "max_queue_texts": 8}
    config = ServeConfig(
        threads_per_instance=1, tokens_per_bucket=64, concurrent_buckets=request.param, **settings
    )
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    with running_backend(onnx_artifact, tmp_path / "models", config) as model:
        yield model


def raw(*values: bytes) -> Request:
    return Request([np.array([[value] for value in values], np.object_)])


def arrays_of(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    outputs = [Outputs(row[None], np.zeros(1, dtype=np.int64)) for row in logits]
    texts = [("text",)] * len(logits)
    return SINGLE_LABEL.response(outputs, texts, labels, texts)


def test_each_request_gets_its_own_answers(
    backend: TritonPythonModel, local: Classifier, texts: tuple[Example, ...]
) -> None:
    parts = (texts[:5], texts[5:6], texts[-1:])
    requests = [request_of(*part) for part in parts]
    for part, response in zip(parts, responses_of(backend, *requests), strict=True):
        outputs = response.outputs()
        expected = arrays_of(local.logits(part), np.array([b"fruit", b"tool"], np.object_))
        np.testing.assert_allclose(outputs["LOGITS"], expected["LOGITS"], atol=1e-5)
        np.testing.assert_allclose(outputs["SCORE"], expected["SCORE"], atol=1e-5)
        assert outputs["LABEL"].tolist() == expected["LABEL"].tolist()


class Marked:
    """A predictor at whose marked texts something happens instead."""

    def __init__(self, predictor: Any, events: Mapping[str, Callable[[np.ndarray], Any]]) -> None:
        self.predictor = predictor
        self.events = dict(events)
        self.runs = 0

    def logits(self, batch: Batch) -> np.ndarray:
        self.runs += 1
        logits = self.predictor.logits(batch)
        for row, (text,) in enumerate(batch.examples):
            for word, event in tuple(self.events.items()):
                if word in text:
                    logits[row] = event(logits[row])
        return logits


def raise_here(logits: np.ndarray) -> np.ndarray:
    raise RuntimeError("the runtime has a bad day")


FAULTS: Mapping[str, tuple[Request, dict[str, Any], str, str]] = {
    "not UTF-8": (raw(b"fine", b"\xff"), {}, "INVALID_ARG", "TEXT row 1 is not UTF-8"),
    "blank": (raw(b"fine", b" "), {}, "INVALID_ARG", "TEXT row 1 is empty"),
    "no text": (Request([np.empty((0, 1), np.object_)]), {}, "INVALID_ARG", "holds no text"),
    "too many bytes": (raw(b"a" * 201), {}, "INVALID_ARG", "has 201 bytes, allowed 200"),
    "too many tokens": (
        raw(b"fine", b"saw " * 40),
        {},
        "INVALID_ARG",
        "row 1 has more than 20 tokens",
    ),
    "a parameter of another type": (
        request_of(("saw",), truncate="yes"),
        {},
        "INVALID_ARG",
        "'truncate' is 'yes'",
    ),
    "a run that fails": (
        raw(b"the pear BREAK"),
        {"BREAK": raise_here},
        "INTERNAL",
        "RuntimeError: the runtime has a bad day",
    ),
    "logits that are no numbers": (
        raw(b"the pear NAN", b"fine"),
        {"NAN": lambda logits: logits * np.nan},
        "INTERNAL",
        "not finite",
    ),
    "infinite logits": (
        raw(b"the pear INF"),
        {"INF": lambda logits: logits + np.inf},
        "INTERNAL",
        "not finite",
    ),
}
"""A request at fault, what befalls the model at its words, and the error that it gets."""


@pytest.fixture
def busy(backend: TritonPythonModel) -> Iterator[threading.Event]:
    """Runs that go on until the event is set, in every lane; nothing waits."""
    release, entered = threading.Event(), threading.Semaphore(0)

    def hold(logits: np.ndarray) -> np.ndarray:
        entered.release()
        assert release.wait(10)
        return logits

    predictor = Marked(backend.model.classifier.predictor, {"HOLD": hold})
    backend.model.classifier.predictor = predictor
    holding = []
    for _ in range(backend.model.large_lanes):
        holding.append(raw(b"HOLD"))
        backend.execute([holding[-1]])
        assert entered.acquire(timeout=10)
    yield release
    release.set()
    assert all(each.response().error is None for each in holding)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_of_its_own_request_alone(
    name: str,
    backend: TritonPythonModel,
    busy: threading.Event,
    local: Classifier,
    texts: tuple[Example, ...],
) -> None:
    bad, events, code, said = FAULTS[name]
    bad = Request(bad.arrays, bad.settings)
    predictor: Any = backend.model.classifier.predictor
    predictor.events.update(events)
    requests = [request_of(texts[0]), bad, request_of(*texts[1:4])]
    backend.execute(requests)  # they wait together, and so are one batch
    busy.set()
    first, second, third = (request.response() for request in requests)
    assert second.error is not None and second.error.code == getattr(TritonError, code)
    assert said in str(second.error)
    np.testing.assert_allclose(first.outputs()["LOGITS"], local.logits(texts[:1]), atol=1e-5)
    np.testing.assert_allclose(third.outputs()["LOGITS"], local.logits(texts[1:4]), atol=1e-5)


def test_a_text_of_a_failed_run_is_not_logged(
    backend: TritonPythonModel, caplog: pytest.LogCaptureFixture
) -> None:
    def quote(logits: np.ndarray) -> np.ndarray:
        raise ValueError("cannot run 'my secret BREAK'")

    backend.model.classifier.predictor = Marked(
        backend.model.classifier.predictor, {"BREAK": quote}
    )
    (response,) = responses_of(backend, raw(b"my secret BREAK"))
    assert "my secret" in str(response.error)
    assert "ValueError at" in caplog.text and "secret" not in caplog.text


def test_a_long_text_is_cut_on_request(
    backend: TritonPythonModel, texts: tuple[Example, ...]
) -> None:
    long = ("saw " * 40,)
    cut, plain = responses_of(
        backend, request_of(texts[0], long, truncate=True), request_of(texts[0])
    )
    assert cut.outputs()["TRUNCATED"].tolist() == [[False], [True]]
    assert "TRUNCATED" not in plain.outputs()
    shorter = ("saw " * (MAX_LENGTH - 2),)  # less the two special tokens
    (expected,) = responses_of(backend, request_of(texts[0], shorter))
    np.testing.assert_allclose(cut.outputs()["LOGITS"], expected.outputs()["LOGITS"], atol=1e-5)


def test_a_full_queue_rejects_at_once(backend: TritonPythonModel, busy: threading.Event) -> None:
    waiting = [raw(*[b"pear"] * 3), raw(*[b"pear"] * 5)]
    rejected = raw(b"pear")
    backend.execute([*waiting, rejected])
    error = rejected.response().error
    assert error is not None and error.code == TritonError.UNAVAILABLE
    assert "8 texts wait at most" in str(error)
    assert not any(request.sent for request in waiting)
    busy.set()
    assert [request.response().error for request in waiting] == [None, None]


def test_a_request_that_waits_too_long_is_rejected(
    backend: TritonPythonModel, busy: threading.Event
) -> None:
    late, fresh = raw(b"pear"), raw(b"pear")
    backend.execute([late])
    backend.model.queue.clock = lambda: time.monotonic() + 11
    backend.execute([fresh])
    error = late.response().error
    assert error is not None and error.code == TritonError.UNAVAILABLE
    assert "over 10000 ms" in str(error)
    busy.set()
    assert fresh.response().error is None


def test_a_request_whose_client_has_gone_is_not_run(
    backend: TritonPythonModel, busy: threading.Event
) -> None:
    SENT.clear()
    gone, there = raw(b"pear"), raw(b"pear")
    gone.cancelled = True
    backend.execute([gone, there])
    time.sleep(0.02)
    predictor: Any = backend.model.classifier.predictor
    before = predictor.runs
    busy.set()
    error = gone.response().error
    assert error is not None and error.code == TritonError.CANCELLED
    assert there.response().error is None
    assert predictor.runs == before + 1
    backend.finalize()
    texts = [SENT[key] for key in SENT if key[0] == "bertender_batch_texts_total"]
    held = backend.model.large_lanes
    assert sum(texts) == 1 + held, "that of the client, and those that kept the model busy"


def test_what_is_rejected_is_counted_by_its_reason(
    backend: TritonPythonModel, busy: threading.Event
) -> None:
    SENT.clear()
    late, gone, bad = raw(b"pear"), raw(b"pear"), raw(b"BREAK")
    gone.cancelled = True
    predictor: Any = backend.model.classifier.predictor
    predictor.events["BREAK"] = raise_here
    backend.execute([late, *(raw(*[b"pear"] * 8) for _ in range(3)), raw(b" ")])
    backend.model.queue.clock = lambda: time.monotonic() + 11
    backend.execute([])
    backend.execute([gone, bad])
    backend.model.queue.clock = lambda: time.monotonic() + 12
    busy.set()
    assert bad.response().error is not None
    backend.finalize()
    counted = {key[-1]: SENT[key] for key in SENT if "rejected" in key[0]}
    reasons = ("queue_full", "queue_timeout", "invalid", "cancelled", "failed")
    assert counted == dict(zip(reasons, (3, 1, 1, 1, 1), strict=True))
    waits = {key[-1]: SENT[key] for key in SENT if key[0] == "bertender_queue_wait_seconds_bucket"}
    held = backend.model.large_lanes
    assert (waits["0.5"], waits["2"], waits["+Inf"]) == (held, held + 2, held + 3)


def test_what_waits_is_answered_before_the_end(
    backend: TritonPythonModel, busy: threading.Event
) -> None:
    waiting = [raw(b"pear") for _ in range(5)]
    backend.execute(waiting)
    threading.Timer(0.05, busy.set).start()
    backend.finalize()
    assert [len(request.sent) for request in waiting] == [1] * 5


def test_its_threads_end_with_the_backend(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    before = {*threading.enumerate()}
    config = ServeConfig(concurrent_buckets=3, threads_per_instance=1)
    with running_backend(onnx_artifact, tmp_path / "models", config) as backend:
        responses_of(backend, raw(*[b"pear " * 16] * 8), raw(b"pear " * 5000))
        own = {*threading.enumerate()} - before
        assert len(own) >= 4
    assert not any(thread.is_alive() for thread in own)


def test_the_tokenizer_has_the_threads_of_all_buckets(
    backend: TritonPythonModel, request: pytest.FixtureRequest
) -> None:
    at_once = request.node.callspec.params["backend"]
    assert os.environ["RAYON_NUM_THREADS"] == str(at_once)


def test_the_score_is_the_softmax_of_the_label() -> None:
    logits = np.array([[0.0, 1000.0, 999.0], [2.0, 1.0, 0.0]], np.float32)
    outputs = arrays_of(logits, np.array([b"a", b"b", b"c"], np.object_))
    assert outputs["LABEL"].tolist() == [[b"b"], [b"a"]]
    np.testing.assert_allclose(outputs["SCORE"], [[0.7310586], [0.6652409]], rtol=1e-6)
    assert outputs["SCORE"].dtype == np.float32


def test_instances_share_the_cores_but_have_one_at_least() -> None:
    assert share_of_cores(1) == usable_cores()
    assert share_of_cores(10_000) == 1


STUB = """
import json, sys
from pathlib import Path
import serve.backend.model
from serve.config import BackendParameters

parameters = BackendParameters(tokens_per_bucket=64, threads=1)
serve.backend.model.open_served_model(Path(sys.argv[1]), parameters, 8).close()
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""

HEAVY = (
    "torch",
    "transformers",
    "huggingface_hub",
    "datasets",
    "sklearn",
    "grpc",
    "google.protobuf",
)


@pytest.mark.parametrize("fixture", ["onnx_artifact", "pair_artifact"])
def test_the_stub_loads_no_training_library(fixture: str, request: pytest.FixtureRequest) -> None:
    """Which may be there all the same: nothing keeps transformers from PyTorch here."""
    artifact: Artifact = request.getfixturevalue(fixture)
    command = [sys.executable, "-c", STUB, str(artifact.path), "numpy", *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["numpy"]
