"""TritonEngine: a real Triton that nobody but the door reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError
from bertender.models.classifier import Classifier
from serve.config import ServeConfig
from serve.door.engine import Code, InferRequest, RefusedError
from serve.door.triton_engine import TritonEngine
from serve.door.triton_http import TritonHttp
from serve.repository import write_repository
from serve.server.triton_process import Triton
from serve.server.workspace import REPOSITORY, Workspace
from serve.wire import TOKENS, Tensor

pytestmark = pytest.mark.server


def request_of(*texts: bytes, number: int = 1, **settings: object) -> InferRequest:
    array = np.array([[text] for text in texts], np.object_)
    inputs = (Tensor.of_array("TEXT", array),)
    return InferRequest(number, "classifier", inputs, "me", **settings)  # type: ignore[arg-type]


def with_engine(artifact: Artifact, use: Callable[[TritonEngine], Awaitable[None]]) -> None:
    """Start the engine, use it, and check that nothing is left."""

    async def run() -> None:
        with Workspace() as workspace:
            config = ServeConfig(threads_per_instance=1)
            repository = write_repository(artifact, workspace.path / REPOSITORY, config)
            engine = TritonEngine(Triton(repository, config, workspace))
            try:
                await engine.start()
                await use(engine)
            finally:
                await engine.stop()
            assert not workspace.path.exists()

    asyncio.run(run())


def test_it_answers_dies_and_starts_again(onnx_artifact: Artifact, local: Classifier) -> None:
    (expected,) = local.logits([("apple saw",)])

    async def use(engine: TritonEngine) -> None:
        (model,) = (await engine.models()).values()
        assert (model.name, model.version, model.inputs) == ("classifier", "1", ("TEXT",))
        assert model.outputs["LOGITS"] == ("FP32", (2,)) and model.outputs["LABEL"][0] == "BYTES"
        outputs = {each.name: each for each in await engine.infer(request_of(b"apple saw"))}
        np.testing.assert_allclose(outputs["LOGITS"].array()[0], expected, atol=1e-5)
        with pytest.raises(RefusedError, match=r"row 0 .*UTF-8") as refused:
            await engine.infer(request_of(b"\xff"))
        assert refused.value.code is Code.INVALID
        assert "nv_inference_count" in await engine.metrics()
        await engine.kill()
        assert "status 71: the server does not answer" in await engine.died()
        with pytest.raises(RefusedError, match="being restarted") as away:
            await engine.infer(request_of(b"apple saw"))
        assert away.value.code is Code.UNAVAILABLE
        await engine.start()
        wishes = {"truncate": True, "timeout_ms": 999.5, "counted": True}
        outputs = {each.name: each for each in await engine.infer(request_of(b"saw", **wishes))}
        assert outputs[TOKENS].array().tolist() == [[3]]

    with_engine(onnx_artifact, use)


def test_one_that_ends_as_soon_as_it_is_ready_has_not_started(
    onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(engine: TritonEngine) -> None:
        check = engine._check_closed

        async def ended_before() -> None:
            await engine.kill()
            await check()

        monkeypatch.setattr(engine, "_check_closed", ended_before)
        await engine.kill()
        with pytest.raises(ServingError, match="the server did not start"):
            await engine.start()
        monkeypatch.undo()
        await engine.start()

    with_engine(onnx_artifact, use)


def test_one_whose_supervisor_is_told_to_end_is_away_and_starts_again(
    onnx_artifact: Artifact,
) -> None:
    """Triton unloads its models before it ends."""

    async def use(engine: TritonEngine) -> None:
        assert engine.triton.supervisor is not None
        engine.triton.supervisor.terminate()
        died, codes = asyncio.create_task(engine.died()), set()
        while not died.done():
            try:
                await engine.infer(request_of(b"apple saw"))
            except RefusedError as error:
                codes.add(error.code)
        assert codes == {Code.UNAVAILABLE}
        await engine.start()
        assert await engine.infer(request_of(b"apple saw"))

    with_engine(onnx_artifact, use)


def test_a_request_whose_connection_is_given_up_is_refused(onnx_artifact: Artifact) -> None:
    async def use(engine: TritonEngine) -> None:
        assert engine.triton.supervisor is not None
        stopped = psutil.Process(engine.triton.supervisor.pid).children(recursive=True)
        for each in stopped:
            each.suspend()
        asked = asyncio.create_task(engine.infer(request_of(b"apple saw")))
        await asyncio.sleep(0.1)
        engine._close()
        with pytest.raises(RefusedError) as refused:
            await asked
        assert refused.value.code is Code.ENDED
        for each in stopped:
            each.resume()

    with_engine(onnx_artifact, use)


def test_an_unloaded_model_stays_away_after_a_restart(onnx_artifact: Artifact) -> None:
    async def use(engine: TritonEngine) -> None:
        await engine.unload("classifier")
        await engine.kill()
        await engine.died()
        await engine.start()
        assert not await engine.models() and not engine.is_ready()
        await engine.load("classifier")
        await engine.kill()
        await engine.died()
        await engine.start()
        assert await engine.infer(request_of(b"apple saw"))

    with_engine(onnx_artifact, use)


def test_nobody_else_reaches_it(onnx_artifact: Artifact) -> None:
    async def use(engine: TritonEngine) -> None:
        assert engine.triton.supervisor is not None
        (binary, *_) = psutil.Process(engine.triton.supervisor.pid).children()
        while not await engine.metrics():  # its port is the last that Triton opens
            await asyncio.sleep(0.05)
        ports = {
            each.laddr for each in binary.net_connections() if each.status == psutil.CONN_LISTEN
        }
        assert ports == {("127.0.0.1", engine.triton.metrics_port)}
        line = Path(f"/proc/{binary.pid}/cmdline").read_text()
        assert engine.triton.token not in line and "=****" in line
        (socket,) = [each for each in engine.triton.workspace.path.iterdir() if each.is_socket()]
        assert socket.parent.stat().st_mode & 0o077 == 0
        stranger = TritonHttp(engine.triton.address, token="")
        for method, path in (
            ("POST", "/v2/models/classifier/infer"),
            ("GET", "/v2/models/classifier/config"),
            ("POST", "/v2/repository/index"),
            ("GET", "/v2/systemsharedmemory/status"),
        ):
            answer = await stranger.ask(method, path, {})
            assert answer.status == 403 and "restricted" in answer.error()
        stranger.close()

    with_engine(onnx_artifact, use)


def test_a_caller_that_goes_cancels_nothing(onnx_artifact: Artifact) -> None:
    async def use(engine: TritonEngine) -> None:
        requests = [request_of(b"apple saw " * 20, number=number) for number in range(1, 100)]
        tasks = [asyncio.create_task(engine.infer(each)) for each in requests]
        await asyncio.sleep(0.01)
        for task, request in zip(tasks, requests, strict=True):
            task.cancel()
            engine.abandon(request)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await engine.infer(request_of(b"apple saw", number=100))

    with_engine(onnx_artifact, use)
