"""The embedded engine: a model in a process of its own, replaced without a gap, watched."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import numpy as np
import psutil
import pytest
import uvloop

from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError
from bertender.models.classifier import Classifier
from bertender.text.batch import Example
from serve.config import ServeConfig
from serve.door import embedded
from serve.door.embedded import EmbeddedEngine
from serve.door.engine import Code, InferRequest, RefusedError
from serve.repository import write_repository
from serve.wire import TOKENS, Tensor, to_arrays

NUMBERS = itertools.count(1)
WORKER = "serve.backend.worker"
CONFIG = ServeConfig(threads_per_instance=1, max_length=20)


@pytest.fixture(scope="module")
def repository(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedded") / "models"
    models = {"classifier": onnx_artifact, "other": onnx_artifact}
    return write_repository(models, folder, CONFIG, is_temporary=True)


@pytest.fixture(scope="module")
def alone(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one model, for which one process starts."""
    folder = tmp_path_factory.mktemp("embedded") / "models"
    return write_repository(onnx_artifact, folder, CONFIG, is_temporary=True)


def request_of(
    *examples: Example, model: str = "classifier", truncate: bool = True
) -> InferRequest:
    (texts,) = to_arrays(examples, 1)
    tensor = Tensor.of_array("TEXT", texts)
    return InferRequest(next(NUMBERS), model, (tensor,), caller="test", truncate=truncate)


def while_running(
    repository: Path,
    use: Callable[[EmbeddedEngine], Awaitable[None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    async def run() -> None:
        engine = EmbeddedEngine(repository, CONFIG)
        await engine.start()
        try:
            await use(engine)
        finally:
            await engine.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


def test_requests_at_once_have_the_logits_of_the_model(
    repository: Path, local: Classifier, texts: tuple[Example, ...]
) -> None:
    parts = [texts[start : start + 5] for start in range(0, 40, 5)]

    async def use(engine: EmbeddedEngine) -> None:
        served = await engine.models()
        assert {*served} == {"classifier", "other"} and engine.is_ready()
        assert served["classifier"].inputs == ("TEXT",)
        for each in served.values():
            assert [own["name"] for own in each.config["output"]] == [*each.outputs]
        answers = await asyncio.gather(*(engine.infer(request_of(*part)) for part in parts))
        for part, tensors in zip(parts, answers, strict=True):
            (logits,) = (each.array() for each in tensors if each.name == "LOGITS")
            np.testing.assert_allclose(logits, local.logits(part), atol=1e-5)
        other = await engine.infer(request_of(*parts[0], model="other"))
        assert [each.name for each in other] == ["LABEL", "SCORE", "LOGITS", "TRUNCATED"]
        counted = replace(request_of(("saw",), ("saw saw",)), counted=True)
        *_, tokens = await engine.infer(counted)
        assert tokens.name == TOKENS and tokens.array().tolist() == [[3], [4]]
        await asyncio.sleep(1.1)
        assert 'bertender_run_texts_total{model="other",version="1"' in await engine.metrics()

    while_running(repository, use)


def test_a_large_count_moves_with_each_text(alone: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        texts = ("bertender_run_texts_total", "16")
        engine.processes["classifier"].counted[texts] = 1e7
        await engine.infer(request_of(("saw",)))
        await asyncio.sleep(1.1)
        assert '",length="16"} 10000001.0\n' in await engine.metrics()

    while_running(alone, use)


def test_one_request_is_refused_and_the_others_are_not(alone: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        long = request_of(("saw " * 90,), truncate=False)
        results = await asyncio.gather(
            engine.infer(long), engine.infer(request_of(("saw",))), return_exceptions=True
        )
        assert isinstance(results[0], RefusedError) and results[0].code is Code.INVALID
        assert results[0].reason.startswith("row 0 has more than 20 tokens")
        assert isinstance(results[1], tuple)

    while_running(alone, use)


def test_a_model_is_loaded_again_while_requests_come(alone: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        before = engine.processes["classifier"].process.pid
        loading = asyncio.create_task(engine.load("classifier"))
        answered = 0
        while not loading.done():
            await engine.infer(request_of(("saw",)))
            answered += 1
        await loading
        assert answered and engine.processes["classifier"].process.pid != before
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        for name in ("nobody", "..", "../models/classifier", str(alone / "classifier")):
            with pytest.raises(RefusedError) as refused:
                await engine.load(name)
            assert refused.value.code is Code.UNKNOWN

    while_running(alone, use)


def test_a_loading_that_is_given_up_leaves_the_served_model(alone: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        before = engine.processes["classifier"].process.pid
        loading = asyncio.create_task(engine.load("classifier"))
        while [each.state for each in await engine.repository()] != ["READY", "LOADING"]:
            await asyncio.sleep(0.01)
        loading.cancel()
        await asyncio.wait({loading})
        assert [each.state for each in await engine.repository()] == ["READY"]
        assert engine.processes["classifier"].process.pid == before
        found = [each.info for each in psutil.process_iter(["pid", "ppid", "cmdline"])]
        own = [each for each in found if each["ppid"] == os.getpid()]
        assert [each["pid"] for each in own if WORKER in (each["cmdline"] or ())] == [before]
        assert await engine.infer(request_of(("saw",)))

    while_running(alone, use)


def test_a_process_answers_what_it_has_before_it_ends(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that takes long, as long as it answers any."""
    monkeypatch.setattr(embedded, "STOP_S", 0.2)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        waiting = {number: loop.create_future() for number in range(5)}
        process, writer = AsyncMock(), Mock()
        worker = Mock(waiting=waiting, process=process, writer=writer, receiving=None)
        retiring = asyncio.create_task(EmbeddedEngine(alone, CONFIG)._retire(worker))
        for number in range(4):  # the last one hangs
            await asyncio.sleep(0.1)
            writer.close.assert_not_called()
            waiting.pop(number).set_result(())
            waiting[4 + number] = gone = loop.create_future()
            gone.cancel()  # the watch has given up its probe
        await asyncio.wait_for(retiring, 5)
        writer.close.assert_called_once()

    asyncio.run(run())


def test_the_death_of_a_process_is_told_and_its_requests_are_refused(alone: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        process = engine.processes["classifier"].process
        os.kill(process.pid, signal.SIGSTOP)  # so that the request is still there
        asked = asyncio.create_task(engine.infer(request_of(("saw",))))
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        assert await engine.died() == "the process of model 'classifier' ended, status -9"
        with pytest.raises(RefusedError, match="it ended while it had this request") as refused:
            await asked
        assert refused.value.code is Code.ENDED and not engine.is_ready()
        with pytest.raises(RefusedError) as away:
            await engine.infer(request_of(("saw",)))
        assert away.value.code is Code.UNAVAILABLE
        await engine.kill()
        await engine.start()
        assert await engine.infer(request_of(("saw",)))

    while_running(alone, use)


def test_a_process_that_is_about_to_end_takes_no_request(alone: Path) -> None:
    """Its socket ends before it does."""

    async def use(engine: EmbeddedEngine) -> None:
        worker = engine.processes["classifier"]
        os.kill(worker.process.pid, signal.SIGSTOP)
        asked = request_of(("saw",))
        answer = asyncio.create_task(engine.infer(asked))
        await asyncio.sleep(0)
        worker.writer.close()
        engine.abandon(asked)
        further = engine.infer(request_of(("saw",)))
        for waiting, code in ((answer, Code.ENDED), (further, Code.UNAVAILABLE)):
            with pytest.raises(RefusedError) as refused:
                await asyncio.wait_for(waiting, 10)
            assert refused.value.code is code
        os.kill(worker.process.pid, signal.SIGCONT)

    while_running(alone, use, uvloop.new_event_loop)


def test_one_that_ends_before_it_reads_is_an_error(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def run() -> None:
        with pytest.raises(ServingError, match="ended while it loaded, status 1"):
            await EmbeddedEngine(alone, CONFIG).start()

    for _ in range(5):
        asyncio.run(run())


def test_the_death_of_one_leaves_the_others(repository: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        before = {name: each.process.pid for name, each in engine.processes.items()}
        os.kill(before["other"], signal.SIGKILL)
        await engine.died()
        await engine.start()
        after = {name: each.process.pid for name, each in engine.processes.items()}
        assert after["classifier"] == before["classifier"] and after["other"] != before["other"]
        children = {each.pid for each in psutil.Process().children()}
        assert children >= {*after.values()} and not children & {before["other"]}
        assert await engine.infer(request_of(("saw",), model="other"))

    while_running(repository, use)


def test_an_unloaded_model_stays_away_after_a_restart(repository: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        await engine.unload("other")
        os.kill(engine.processes["classifier"].process.pid, signal.SIGKILL)
        await engine.died()
        await engine.kill()
        await engine.start()
        assert {*await engine.models()} == {"classifier"} and engine.is_ready()
        await engine.load("other")
        await engine.kill()
        await engine.start()
        assert {*await engine.models()} == {"classifier", "other"}

    while_running(repository, use)


def test_what_a_process_cannot_take_yet_waits_and_is_not_sent_once_it_is_abandoned(
    alone: Path,
) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        worker = engine.processes["classifier"]
        os.kill(worker.process.pid, signal.SIGSTOP)
        requests = [request_of(("saw " * 8000,)) for _ in range(200)]
        asked = [asyncio.create_task(engine.infer(each)) for each in requests]
        await asyncio.sleep(0.2)
        assert worker.writer.transport.get_write_buffer_size() < 200_000
        for each in requests[:-1]:
            engine.abandon(each)
        os.kill(worker.process.pid, signal.SIGCONT)
        *refused, last = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(last, tuple)
        cancelled = [getattr(each, "code", None) is Code.CANCELLED for each in refused]
        assert sum(cancelled) > 150, "the others were in the socket"
        assert not worker.unsent and not worker.waiting

    while_running(alone, use)


def test_a_caller_that_is_cancelled_while_its_request_waits_leaves_no_error(alone: Path) -> None:
    said: list[str] = []

    async def use(engine: EmbeddedEngine) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, at: said.append(at["message"]))
        async with engine.processes["classifier"].turn:
            request = request_of(("saw",))
            caller = asyncio.create_task(engine.infer(request))
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait({caller})
            engine.abandon(request)
        gc.collect()

    while_running(alone, use)
    assert not said


@pytest.mark.fault("a file of the artifact is damaged", "an error that names the file")
def test_a_damaged_artifact_is_not_served(onnx_artifact: Artifact, tmp_path: Path) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", CONFIG)
    (graph,) = repository.glob("*/*/artifact/model.onnx")
    graph.write_bytes(graph.read_bytes()[:-1] + b"\0")

    async def run() -> None:
        with pytest.raises(ServingError, match=r"does not load: .*model\.onnx"):
            await EmbeddedEngine(repository, CONFIG).start()

    asyncio.run(run())


def test_a_worker_ends_with_its_door(alone: Path) -> None:
    async def use(engine: EmbeddedEngine) -> None:
        worker = engine.processes["classifier"]
        worker.is_retired = True
        worker.writer.close()
        assert await asyncio.wait_for(worker.process.wait(), 10) == 0

    while_running(alone, use)
