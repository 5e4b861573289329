"""The real server under more work than it takes, and with runs that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from tests.serve.marked_model import ASK, BATCH, HOLD_S, QUEUE, SAYS, Answer, marked_server

pytestmark = pytest.mark.server

REJECTED = 8
"""Requests at once."""
SLOW_ONES = 4
"""Of them: those that this process was slow to send, where the machine is busy."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


def hold(server: Server, pool: ThreadPoolExecutor) -> Future[Answer]:
    """Begin as many runs as there are at once, each of which takes HOLD_S; return the last."""
    at_once = SERVED_RUNTIMES[server.config.runtime].buckets_at_once
    for _ in range(at_once):
        holding = pool.submit(ASK["http"], server, ["HOLD"])
        time.sleep(HOLD_S / 4 / at_once)
    return holding


def fill_queue(
    server: Server, pool: ThreadPoolExecutor, protocol: str, in_request: int = 1
) -> list[Future[Answer]]:
    """Send as many texts as may wait, during a run, so many in each request. Who then asks with
    fewer takes the place of one of them."""
    texts = ["pear"] * in_request
    waiting = [pool.submit(ASK[protocol], server, texts) for _ in range(QUEUE // in_request)]
    time.sleep(HOLD_S / 4)
    return waiting


@pytest.mark.fault("more requests than it can run", "rejected at once")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_overload_is_rejected_at_once(
    marked: Server, pool: ThreadPoolExecutor, protocol: str
) -> None:
    ask, says = ASK[protocol], SAYS[protocol]
    holding = hold(marked, pool)
    waiting = fill_queue(marked, pool, protocol)
    rejected = [*pool.map(lambda _: ask(marked, ["pear"]), range(REJECTED))]
    assert {answer.status for answer in rejected} == {says["late"]}
    assert f"the queue is full: {QUEUE} texts wait at most" in rejected[0].content
    seconds = sorted(answer.seconds for answer in rejected)
    assert seconds[REJECTED - SLOW_ONES - 1] < 0.05, seconds
    assert [each.result().status for each in waiting] == [says["fine"]] * len(waiting)
    assert holding.result().status == "200"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_tells_a_rejection_from_an_absent_server(
    onnx_artifact: Artifact, tmp_path: Path, pool: ThreadPoolExecutor, protocol: str
) -> None:
    settings = {"max_batch_size": BATCH, "max_queue_texts": QUEUE}
    with marked_server(onnx_artifact, tmp_path, **settings) as server:
        url = getattr(server, f"{protocol}_url")
        endpoint = Endpoint(url, retries=0)
        hold(server, pool)
        # each on a connection of its own, which those of gRPC here would share
        waiting = fill_queue(server, pool, "http", in_request=2)
        with pytest.raises(OverloadedError, match=f"the queue is full: {QUEUE} texts"):
            endpoint.classify([("pear",), ("apple",)])
        assert {each.result().status for each in waiting} == {"200"}
        assert endpoint.classify([("pear",)]), "it is answered later"
    with endpoint, pytest.raises(UnreachableError, match=url):
        endpoint.classify([("pear",)])
    with pytest.raises(UnreachableError, match=f"no endpoint responds at {url}"):
        Endpoint(url, retries=0)


def test_load_alone_does_not_fail_the_probe(marked: Server, pool: ThreadPoolExecutor) -> None:
    holding = hold(marked, pool)
    waiting = fill_queue(marked, pool, "http")
    assert probe(["--url", marked.http_url, "--timeout-s", "0.1"]) == 1, "it was rejected"
    assert probe(["--url", marked.http_url]) == 0
    assert {each.result().status for each in (holding, *waiting)} == {"200"}


def test_a_model_that_hangs_fails_the_probe(marked: Server, pool: ThreadPoolExecutor) -> None:
    holding = hold(marked, pool)
    assert probe(["--url", marked.http_url, "--timeout-s", str(HOLD_S / 4)]) == 1
    assert holding.result().status == "200"


def test_a_request_that_came_during_a_run_follows_it(
    marked: Server, pool: ThreadPoolExecutor
) -> None:
    """Triton's own queue policy would let it wait for half a second, or for another request."""
    hold(marked, pool)
    assert ASK["http"](marked, ["pear"]).seconds < HOLD_S + 0.2


@pytest.mark.fault("a request waits for longer than `--queue-timeout-ms`", "503 for that request")
def test_a_request_that_waits_for_too_long_is_rejected(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory, pool: ThreadPoolExecutor
) -> None:
    folder = tmp_path_factory.mktemp("late")
    with marked_server(onnx_artifact, folder, queue_timeout_ms=HOLD_S * 250) as server:
        hold(server, pool)
        late = ASK["http"](server, ["pear"])
        assert late.status == "503" and "ms in the queue" in late.content
        assert ASK["http"](server, ["pear"]).status == "200"


@pytest.mark.fault("the client has gone", "its request is not run, and leaves nothing in memory")
def test_what_nobody_waits_for_is_not_run(marked: Server, pool: ThreadPoolExecutor) -> None:
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{marked.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"HOLD"]], np.object_))
    hold(marked, pool)
    ended = threading.Semaphore(0)
    calls = [
        client.async_infer(MODEL_NAME, [tensor], lambda result, error: ended.release())
        for _ in range(QUEUE - 1)  # which leaves room for one more
    ]
    time.sleep(HOLD_S / 8)
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
    hold(marked, pool)
    texts = ["apple", "pear", word, "saw"]
    answers = list(pool.map(lambda text: ask(marked, [text]), texts))
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
        hold(server, pool)
        calls = [pool.submit(ASK["http"], server, [text]) for text in ("pear", "DIE", "saw")]
        answers = [call.result(timeout=8) for call in calls]
        assert {each.status for each in answers} <= {"500", "503"}, answers
        deadline = time.monotonic() + 20
        while ASK["http"](server, ["pear"]).status != "200":
            assert time.monotonic() < deadline
            time.sleep(0.2)
