"""A served model has a thread for each core that its server may use, on the real Triton."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence

import psutil
import pytest

from bertender.core.artifact import Artifact
from bertender.core.hardware import usable_cores
from serve.client.endpoint import Endpoint
from serve.server.supervisor import STUB_NAME
from tests.served import ANY_PORT_OPTIONS, SERVE

pytestmark = pytest.mark.server


def threads_on(cores: Sequence[int], artifact: Artifact, *options: str) -> int:
    """Return how many threads the stub has of a server that may use these cores alone."""
    pinned = ("taskset", "--cpu-list", ",".join(map(str, cores)))
    with subprocess.Popen(
        [*pinned, *SERVE, str(artifact.path), "--json", *ANY_PORT_OPTIONS, *options],
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        try:
            urls = json.loads(server.stdout.readline())
            with Endpoint(urls["http"]) as endpoint:
                endpoint.classify([("pear",)])  # so that every thread that it needs is there
            family = psutil.Process(server.pid).children(recursive=True)
            (stub,) = [each for each in family if each.name() == STUB_NAME]
            assert stub.cpu_affinity() == [*cores]
            return int(stub.num_threads())
        finally:
            server.terminate()
            server.wait(30)


@pytest.fixture(scope="module")
def cores() -> list[int]:
    """Numbers of the cores that this process may use."""
    if shutil.which("taskset") is None:
        pytest.skip("no taskset here")
    return sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def of_one_thread(cores: list[int], onnx_artifact: Artifact) -> int:
    """Threads of a stub whose model has one: the one that calls it, which does other work, too."""
    return threads_on(cores, onnx_artifact, "--threads-per-instance=1")


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_model_has_a_thread_for_each_core_that_its_server_may_use(
    count: int, cores: list[int], of_one_thread: int, onnx_artifact: Artifact
) -> None:
    if usable_cores() < count:
        pytest.skip(f"less than {count} cores here")
    assert threads_on(cores[:count], onnx_artifact) == of_one_thread + count - 1
