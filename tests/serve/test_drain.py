"""SIGTERM under load: whatever was accepted is answered, and an idle connection delays nothing."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertender.core.artifact import Artifact
from bertender.models.runtimes import DEFAULT_RUNTIME
from serve.server.triton_process import IN_FLIGHT_TIMEOUT_S
from tests.serve.layouts import ENCODER_RUNTIME, lay_out_with_encoders
from tests.serve.marked_model import ASK, MARKED, SAYS

OWNER = """
import json, sys
from bertender.core.artifact import Artifact
from serve import repository
from serve.config import ServeConfig
from serve.server.server import serve_forever

def say(server):
    print(json.dumps([server.config.http_port, server.config.grpc_port]), flush=True)

repository.MODEL_FILE = sys.argv[2]
settings = dict(threads_per_instance=1, max_batch_size=10, max_queue_texts=100)
settings.update(json.loads(sys.argv[3]))
config = ServeConfig(http_port=0, grpc_port=0, metrics_port=0, **settings)
serve_forever(Artifact.load(sys.argv[1]), config, say)
"""

IN_FLIGHT = 30


@pytest.mark.server
@pytest.mark.parametrize(
    "runtime", [DEFAULT_RUNTIME, pytest.param(ENCODER_RUNTIME, marks=pytest.mark.slow)]
)
def test_sigterm_answers_what_was_accepted_and_ends(
    onnx_artifact: Artifact, tmp_path: Path, runtime: str
) -> None:
    settings = {"runtime": runtime}
    if runtime == ENCODER_RUNTIME:
        settings["tritonserver"] = str(lay_out_with_encoders(tmp_path / "root"))
    with (
        subprocess.Popen(
            [sys.executable, "-c", OWNER, onnx_artifact.path, MARKED, json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
        ) as owner,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
        ExitStack() as failed,
    ):
        failed.callback(owner.kill)  # or a test that fails would wait for it
        assert owner.stdout is not None
        http_port, grpc_port = json.loads(owner.stdout.readline())
        server = SimpleNamespace(config=SimpleNamespace(http_port=http_port, grpc_port=grpc_port))
        idle = http.client.HTTPConnection("127.0.0.1", http_port, timeout=60)
        idle.request("GET", "/v2/health/ready")
        assert json.loads(idle.getresponse().read())["ready"]
        calls = [
            (protocol, pool.submit(ASK[protocol], server, ["HOLD"]))
            for _ in range(IN_FLIGHT // 2)
            for protocol in ASK
        ]
        time.sleep(0.5)
        owner.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        answers = Counter((protocol, call.result(30).status) for protocol, call in calls)
        assert owner.wait(30) == 0
        failed.pop_all()
        seconds = time.monotonic() - asked
    assert answers == {(protocol, SAYS[protocol]["fine"]): IN_FLIGHT // 2 for protocol in ASK}
    assert seconds < IN_FLIGHT_TIMEOUT_S, "the idle connection holds nobody up"
