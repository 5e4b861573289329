"""The watch: an engine that ends or hangs is started again, a few times, and readiness says so."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest

from bertender.core.errors import ServingError
from serve.door.engine import Code, Engine, InferRequest, Model, RefusedError
from serve.door.watch import Patience, WatchedEngine
from serve.wire import CANDIDATE_SUFFIX, WATCH_CALLER, Tensor

QUICK = Patience(
    every_s=0.01,
    unready_s=0.3,
    hung_s=0.8,
    restarts=3,
    first_delay_s=0.01,
    longest_delay_s=0.02,
)


class Fake(Engine):
    """An engine that does as it is told."""

    def __init__(self) -> None:
        self.starts = self.kills = 0
        self.is_silent = False
        self.refusal: RefusedError | None = None
        self.cannot_start = self.has_no_models = False
        self.asked: list[InferRequest] = []
        self.names = ["m"]

    async def start(self) -> None:
        self.starts += 1
        if self.cannot_start:
            raise ServingError("no room")
        self.is_silent = False
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        if not self.end.done():
            self.end.set_result("stopped")

    async def kill(self) -> None:
        self.kills += 1
        if not self.end.done():
            self.end.set_result("killed")

    async def died(self) -> str:
        return await asyncio.shield(self.end)

    async def models(self) -> Mapping[str, Model]:
        names = () if self.has_no_models else self.names
        return {
            each: Model(each, "1", ("TEXT", "TEXT_PAIR"), {}, 8, 99, None, {}) for each in names
        }

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        self.asked.append(request)
        while self.is_silent and request.caller == WATCH_CALLER:
            await asyncio.sleep(0.01)
        if self.refusal:
            raise self.refusal
        return request.inputs

    def abandon(self, request: InferRequest) -> None:
        pass

    async def metrics(self) -> str:
        return "own 1\n"


async def until(holds: object, timeout_s: float = 5) -> None:
    assert callable(holds)
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.01)


def request_of(caller: str) -> InferRequest:
    text = Tensor.of_array("TEXT", np.array([[b"apple"]], np.object_))
    return InferRequest(1, "m", (text,), caller)


def watched(fake: Fake, **settings: object) -> WatchedEngine:
    return WatchedEngine(fake, patience=QUICK, **settings)  # type: ignore[arg-type]


def test_a_golden_text_is_asked_again_and_again() -> None:
    async def run() -> None:
        fake = Fake()
        fake.names.append(f"m{CANDIDATE_SUFFIX}")
        engine = watched(fake, golden=lambda model: ("apple", "saw"))
        await engine.start()
        await until(lambda: len(fake.asked) > 2)
        assert engine.ready
        asked = fake.asked[-1]
        assert [each.array().tolist() for each in asked.inputs] == [[[b"apple"]], [[b"saw"]]]
        assert asked.caller == WATCH_CALLER and asked.truncate and asked.number < 0
        assert {each.model for each in fake.asked} == {"m"}, "a candidate may hang"
        await engine.stop()
        assert not engine.ready

    asyncio.run(run())


def test_one_that_ends_is_started_again() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.end.set_result("status 70")
        await until(lambda: not engine.is_ready())
        await until(lambda: fake.starts == 2 and engine.is_ready())
        metrics = await engine.metrics()
        assert "\nbertender_door_restarts_total 1.0\n" in metrics and metrics.endswith("own 1\n")
        await engine.stop()

    asyncio.run(run())


def test_models_are_known_while_what_runs_them_is_away() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.cannot_start = fake.has_no_models = True
        fake.end.set_result("status 70")
        await until(lambda: not engine.is_up)
        assert {*await engine.models()} == {"m"}
        with pytest.raises(RefusedError) as refused:
            await engine.infer(request_of("other"))
        assert refused.value.code is Code.UNAVAILABLE
        await engine.stop()

    asyncio.run(run())


def test_one_that_hangs_is_not_ready_and_then_started_again() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.is_silent = True
        await until(lambda: not engine.ready)
        assert (fake.kills, fake.starts) == (0, 1), "not at once"
        await until(lambda: fake.starts == 2 and engine.ready)
        assert fake.kills == 1
        await engine.stop()

    asyncio.run(run())


def test_one_that_answers_others_does_not_hang() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.is_silent = True
        for _ in range(20):
            await engine.infer(request_of("other"))
            await asyncio.sleep(0.1)  # longer than until the next question
        assert fake.starts == 1 and engine.ready
        await engine.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "ready"), [(Code.INVALID, True), (Code.UNAVAILABLE, False), (Code.FAILED, False)]
)
def test_a_refused_text_is_an_answer_and_a_failure_is_not(code: object, ready: bool) -> None:
    """A full queue has room for the watch."""

    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        await until(lambda: bool(fake.asked))
        fake.refusal = RefusedError(code, "a reason")  # type: ignore[arg-type]
        seen = len(fake.asked)
        await until(lambda: len(fake.asked) > seen + 2)
        assert engine.ready is ready and fake.starts == 1
        fake.refusal = None
        await until(lambda: engine.ready)
        await engine.stop()

    asyncio.run(run())


def test_one_without_its_model_is_not_started_again() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.refusal = RefusedError(Code.UNAVAILABLE, "another program has unloaded it")
        await until(lambda: not engine.ready)
        await asyncio.sleep(2 * QUICK.hung_s)
        assert fake.starts == 1 and not engine.ready
        fake.has_no_models = True  # the door has noticed
        await until(lambda: engine.ready)
        await engine.stop()

    asyncio.run(run())


def test_one_that_only_refuses_others_hangs() -> None:
    """The queue of a model that hangs refuses what waits too long."""

    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.is_silent = True
        fake.refusal = RefusedError(Code.UNAVAILABLE, "it has waited for over 10000 ms")
        while fake.starts == 1:
            with pytest.raises(RefusedError):
                await engine.infer(request_of("other"))
            await asyncio.sleep(0.01)
        await engine.stop()

    asyncio.run(asyncio.wait_for(run(), 5))


def test_one_that_fails_at_everything_is_started_again() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.refusal = RefusedError(Code.FAILED, "Stub process 'classifier_0_0' is not healthy.")
        with pytest.raises(RefusedError) as refused:
            await engine.infer(request_of("other"))
        assert refused.value.code is Code.UNAVAILABLE, "others may send it again"
        await until(lambda: fake.starts == 2)
        fake.refusal = None
        await until(lambda: engine.ready)
        await engine.stop()

    asyncio.run(run())


@pytest.mark.fault(
    "what runs the model ends again and again",
    "it is started again 10 times in 10 minutes, then `serve` ends",
)
def test_restarts_have_an_end() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake)
        await engine.start()
        fake.cannot_start = True
        fake.end.set_result("status 70")
        reason = await asyncio.wait_for(engine.died(), 5)
        assert reason == ("no room. It was restarted 3 times within 10 minutes, the most allowed.")
        assert fake.starts == 1 + QUICK.restarts
        with pytest.raises(RefusedError, match="restarted"):
            await engine.infer(request_of("other"))
        await engine.stop()

    asyncio.run(run())


def test_without_restarts_its_first_end_is_the_end() -> None:
    async def run() -> None:
        fake = Fake()
        engine = watched(fake, restarts=False)
        await engine.start()
        fake.end.set_result("status 70")
        assert await asyncio.wait_for(engine.died(), 5) == "status 70"
        await engine.stop()

    asyncio.run(run())


BEATING = """
import asyncio, logging, time
from serve.door import watch
from serve.door.watch import Heartbeat

watch.LAST_WORDS_S = 0.5
log = logging.StreamHandler()
logging.getLogger("serve").addHandler(log)

async def main() -> None:
    async with Heartbeat(hung_s=0.4, every_s=0.05):
        await asyncio.sleep(0.6)
        print("beats", flush=True)
        {hang}
    time.sleep(0.6)
    print("ended", flush=True)

asyncio.run(main())
"""


@pytest.mark.fault("the door's own event loop hangs", "it ends, for a service manager to start it")
@pytest.mark.parametrize(
    ("hang", "printed", "said"),
    [
        ("time.sleep(5)", "beats", "in main"),
        ("log.acquire(); time.sleep(5)", "beats", ""),  # as in a write that nobody reads
        ("time.sleep(0.1)", "beats ended", ""),
    ],
)
def test_a_door_whose_event_loop_hangs_ends(hang: str, printed: str, said: str) -> None:
    script = [sys.executable, "-c", BEATING.format(hang=hang)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=30, check=False)
    assert " ".join(done.stdout.split()) == printed
    assert done.returncode == (0 if "ended" in printed else ServingError.exit_code)
    assert (said in done.stderr) if said else not done.stderr, "where it hung"
