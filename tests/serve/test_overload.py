"""The real server under more work than it takes, and with runs that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from bertender.core.artifact import Artifact
from bertender.core.errors import OverloadedError, UnreachableError
from serve.client.endpoint import Endpoint
from serve.client.protocols import PROTOCOLS
from serve.config import SERVED_RUNTIMES
from serve.probe import main as probe
from serve.server.server import Server
from serve.wire import MODEL_NAME
from tests.serve.marked_model import (
    ASK,
    BATCH,
    BEGUN,
    GO,
    HOLD_S,
    QUEUE,
    SAYS,
    Answer,
    marked_server,
)
from tests.served import until

pytestmark = pytest.mark.server

REJECTED = 8
"""Requests at once."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


@contextmanager
def held(server: Server, pool: ThreadPoolExecutor) -> Iterator[Callable[[], None]]:
    """Begin as many runs as there are at once, which end when what this gives is called."""
    begun, go = (server.repository / MODEL_NAME / "1" / name for name in (BEGUN, GO))
    for left in (begun, go):
        left.unlink(missing_ok=True)
    runs = []
    try:
        for _ in range(SERVED_RUNTIMES[server.config.runtime].buckets_at_once):
            runs.append(pool.submit(ASK["http"], server, ["WAIT"]))
            until(lambda: begun.exists() and begun.stat().st_size == len(runs))
        yield go.touch
    finally:
        go.touch()
    assert {each.result().status for each in runs} == {"200"}


def fill_queue(
    server: Server, pool: ThreadPoolExecutor, protocol: str, in_request: int = 1
) -> list[Future[Answer]]:
    """Send as many texts as may wait, so many in each request, and one request more: once one is
    rejected, the queue is full. Who then asks with fewer takes the place of one of them."""
    texts = ["pear"] * in_request
    sent = [pool.submit(ASK[protocol], server, texts) for _ in range(QUEUE // in_request + 1)]
    rejected, waiting = wait(sent, timeout=20, return_when=FIRST_COMPLETED)
    assert [each.result().status for each in rejected] == [SAYS[protocol]["late"]]
    return list(waiting)


@pytest.mark.fault("more requests than it can run", "rejected at once")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_overload_is_rejected_at_once(
    marked: Server, pool: ThreadPoolExecutor, protocol: str
) -> None:
    ask, says = ASK[protocol], SAYS[protocol]
    with held(marked, pool):
        waiting = fill_queue(marked, pool, protocol)
        # answered while no run ends: nothing waits for a place
        rejected = [*pool.map(lambda _: ask(marked, ["pear"]), range(REJECTED))]
    assert {answer.status for answer in rejected} == {says["late"]}
    assert f"the queue is full: {QUEUE} texts wait at most" in rejected[0].content
    assert [each.result().status for each in waiting] == [says["fine"]] * QUEUE


def test_a_client_tells_a_rejection_from_an_absent_server(
    onnx_artifact: Artifact, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    settings = {"max_batch_size": BATCH, "max_queue_texts": QUEUE}
    with marked_server(onnx_artifact, tmp_path, **settings) as server:
        urls = [getattr(server, f"{protocol}_url") for protocol in PROTOCOLS]
        endpoints = [Endpoint(url, retries=0) for url in urls]
        with held(server, pool):
            # each on a connection of its own, which those of gRPC here would share
            waiting = fill_queue(server, pool, "http", in_request=2)
            for endpoint in endpoints:
                with pytest.raises(OverloadedError, match=f"the queue is full: {QUEUE} texts"):
                    endpoint.classify([("pear",), ("apple",)])
        assert {each.result().status for each in waiting} == {"200"}
        assert all(each.classify([("pear",)]) for each in endpoints), "it is answered later"
    for url, endpoint in zip(urls, endpoints, strict=True):
        with endpoint, pytest.raises(UnreachableError, match=url):
            endpoint.classify([("pear",)])
        with pytest.raises(UnreachableError, match=f"no endpoint responds at {url}"):
            Endpoint(url, retries=0)


def test_load_alone_does_not_fail_the_probe(marked: Server, pool: ThreadPoolExecutor) -> None:
    with held(marked, pool) as release:
        waiting = fill_queue(marked, pool, "http")
        assert probe(["--url", marked.http_url, "--timeout-s", "0.1"]) == 1, "it was rejected"
        threading.Timer(0.2, release).start()
        assert probe(["--url", marked.http_url]) == 0
    assert {each.result().status for each in waiting} == {"200"}


def test_a_model_that_hangs_fails_the_probe(marked: Server, pool: ThreadPoolExecutor) -> None:
    with held(marked, pool):
        assert probe(["--url", marked.http_url, "--timeout-s", str(HOLD_S / 4)]) == 1


def test_a_request_that_came_during_a_run_follows_it(
    marked: Server, pool: ThreadPoolExecutor
) -> None:
    """Triton's own queue policy would let it wait for half a second, or for another request."""
    waited = []
    for _ in range(3):
        with held(marked, pool) as release:
            follower = pool.submit(ASK["http"], marked, ["pear"])
            time.sleep(HOLD_S / 2)
            release()
            released = time.monotonic()
            assert follower.result().status == "200"
        waited.append(time.monotonic() - released)
    assert min(waited) < 0.4, waited


@pytest.mark.fault("a request waits for longer than `--queue-timeout-ms`", "503 for that request")
def test_a_request_that_waits_for_too_long_is_rejected(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory, pool: ThreadPoolExecutor
) -> None:
    folder = tmp_path_factory.mktemp("late")
    with marked_server(onnx_artifact, folder, queue_timeout_ms=HOLD_S * 250) as server:
        with held(server, pool) as release:
            waiting = pool.submit(ASK["http"], server, ["pear"])
            time.sleep(HOLD_S)
            release()
            late = waiting.result()
        assert late.status == "503" and "ms in the queue" in late.content
        assert ASK["http"](server, ["pear"]).status == "200"


@pytest.mark.fault("the client has gone", "its request is not run, and leaves nothing in memory")
def test_what_nobody_waits_for_is_not_run(marked: Server, pool: ThreadPoolExecutor) -> None:
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{marked.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"HOLD"]], np.object_))
    ended = threading.Semaphore(0)
    with held(marked, pool):
        calls = [
            client.async_infer(MODEL_NAME, [tensor], lambda result, error: ended.release())
            for _ in range(QUEUE - 1)  # which leaves room for one more
        ]
        time.sleep(HOLD_S / 4)
        for call in calls:
            call.cancel()
        assert all(ended.acquire(timeout=10) for _ in calls)
    follower = ASK["http"](marked, ["pear"])
    assert follower.status == "200"
    assert follower.seconds < 2 * HOLD_S, "two batches of cancelled requests would take longer"
    client.close()


@pytest.mark.fault(
    "a run fails, or logits are not finite", "500 for that request; the others run again"
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("word", "said"), [("BREAK", "RuntimeError: the runtime has a bad day"), ("NAN", "not finite")]
)
def test_a_failing_run_fails_its_own_requests_alone(
    marked: Server, pool: ThreadPoolExecutor, protocol: str, word: str, said: str
) -> None:
    ask, says = ASK[protocol], SAYS[protocol]
    texts = ["apple", "pear", word, "saw"]
    with held(marked, pool) as release:
        asked = [pool.submit(ask, marked, [text]) for text in texts]
        time.sleep(HOLD_S / 4)
        release()
        answers = [each.result() for each in asked]
    assert [answer.status for answer in answers] == [
        says["broken" if text == word else "fine"] for text in texts
    ]
    assert said in answers[2].content


def test_a_stub_that_dies_of_a_text_leaves_nobody_waiting(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory, pool: ThreadPoolExecutor
) -> None:
    """And the next request is answered, once the model has been started again."""
    folder = tmp_path_factory.mktemp("dies")
    with marked_server(onnx_artifact, folder) as server:
        with held(server, pool) as release:
            calls = [pool.submit(ASK["http"], server, [text]) for text in ("pear", "DIE", "saw")]
            time.sleep(HOLD_S / 4)
            release()
        answers = [call.result(timeout=8) for call in calls]
        assert {each.status for each in answers} <= {"500", "502", "503"}, answers
        deadline = time.monotonic() + 20
        while ASK["http"](server, ["pear"]).status != "200":
            assert time.monotonic() < deadline
            time.sleep(0.2)
