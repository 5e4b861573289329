"""The benchmark of servers: every system is measured, and the table and its words follow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import typer
from onnxruntime import get_available_providers
from tritonclient.grpc import service_pb2
from typer.testing import CliRunner

from benchmarks.common.pinning import NOT_PINNED, Pins, pinned
from benchmarks.common.saving import RESULTS
from benchmarks.common.versions import versions_of
from benchmarks.plain_servers.model import PlainModel
from benchmarks.serving import measuring as serving
from benchmarks.serving import prepared, rounds
from benchmarks.serving.clients import BenchmarkClient, Open
from benchmarks.serving.gpu_table import gpu_servers_block
from benchmarks.serving.loads import StartedSystem, started
from benchmarks.serving.measuring import begin
from benchmarks.serving.prepared import prepared_texts
from benchmarks.serving.reading import AIMS, serving_reading
from benchmarks.serving.records import (
    CALLS,
    LOADS,
    Ceiling,
    CeilingCell,
    Load,
    ServingBenchmark,
    ServingConfig,
    ServingLimit,
    ServingRun,
    ServingVisit,
)
from benchmarks.serving.systems import OWN, OWN_ON_GPU, PADDED, SYSTEMS, Service, System
from benchmarks.serving.table import serving_block
from benchmarks.serving.texts import LONGEST_TOKENS, WORKLOADS, TextLengths
from benchmarks.serving.undisturbed import undisturbed
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, LoadTestError, MachineBusyError, ModelError
from bertender.core.machine_load import MachineLoad
from bertender.models.opening import open_classifier
from bertender.models.runtimes import RUNTIMES
from bertender.tasks.task import Task
from serve.loadtest.records import Limit, Outcome
from serve.loadtest.senders import Request

QUICK = ServingConfig(
    duration_s=0.15, warmup_s=0.05, limit_duration_s=0.2, slo_p99_ms=10_000, noisy=True
)


@pytest.fixture(scope="module")
def texts(task: Task) -> list[str]:
    return [text for (text,) in task.dev.examples]


@pytest.fixture(scope="module")
def result(exported: Artifact, texts: list[str]) -> ServingBenchmark:
    return begin(exported, texts, QUICK.model_copy(update={"rounds": 1, "limits": False})).run()


PROVIDER = "CUDAExecutionProvider"
OVER_HTTP = ("fastapi", "litserve")
OPTIONAL = [name for name, row in SYSTEMS.items() if row.needs]
INSTALLED = [
    name
    for name, row in SYSTEMS.items()
    if not row.missing and (name != OWN_ON_GPU or PROVIDER in get_available_providers())
]


@pytest.mark.server
@pytest.mark.slow
def test_every_system_that_is_installed_gets_every_load(result: ServingBenchmark) -> None:
    assert {*INSTALLED, *result.left_out, OWN_ON_GPU} == {*SYSTEMS} and OWN in INSTALLED
    places = [(visit.workload, visit.system, visit.round) for visit in result.visits]
    expected = {(w, s, 0) for w in WORKLOADS for s in INSTALLED}
    # the longest text of the mix has the maximum
    assert sorted(places) == sorted(expected - {("long-tailed", "padded-to-longest", 0)})
    for visit in result.visits:
        assert [run.load for run in visit.runs] == [*LOADS]
        for run in visit.runs:
            assert run.outcomes["ok"] == len(run.latency_ms) > 0
            assert run.texts_per_second > 0 and run.p50_ms and run.p99_ms
    for ceiling in result.ceilings:
        assert [cell.texts_per_call for cell in ceiling.cells] == [*CALLS]
        assert ceiling.texts_per_second >= ceiling.cells[0].texts_per_second > 0
    assert result.limits == ()


def test_workloads_have_the_lengths_that_they_promise(exported: Artifact, texts: list[str]) -> None:
    made = prepared_texts(exported, texts)
    natural, long_tailed = (made[name] for name in ("natural", "long-tailed"))
    assert natural.texts == texts
    longest = min(LONGEST_TOKENS, long_tailed.longest)
    assert long_tailed.lengths.longest <= longest
    assert long_tailed.lengths.p95 > 0.8 * longest > 2 * long_tailed.lengths.median
    for each in (natural, long_tailed):
        assert each.lengths.longest <= each.lengths.rounded < each.lengths.longest + 8
    tokenizer = tokenizers.Tokenizer.from_file(str(exported.path / "tokenizer.json"))
    tokenizer.no_truncation()
    lengths = [len(tokenizer.encode(text).ids) for text in long_tailed.texts]
    assert max(lengths) == long_tailed.lengths.longest
    assert np.median(lengths) == long_tailed.lengths.median


def test_a_block_runs_on_its_core_and_what_comes_after_on_all() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned(core):
        assert os.sched_getaffinity(0) == {core}
    with pinned(None):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("pins", [Pins(server=0, generator=0), Pins(server=0, generator=4096)])
def test_cores_that_are_not_there_are_named(pins: Pins) -> None:
    with pytest.raises(ConfigError, match="--no-pin"):
        pins.check()
    NOT_PINNED.check()


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        (("bertender", "nginx"), r"no server 'nginx'.*bertender-cuda"),
        (("bertender", "bertender-http"), r"Add padded, or give --no-limits"),
        (("bertender", "padded", "bertender-cuda"), r"bertender-cuda: this runtime cannot open"),
    ],
)
def test_systems_are_checked_before_anything_is_timed(
    systems: tuple[str, ...], message: str, exported: Artifact, texts: list[str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        begin(exported, texts, QUICK.model_copy(update={"systems": systems}))


def test_quantized_models_are_not_served_on_a_gpu(
    exported: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose runtime opens them, and runs them in floats."""
    row = replace(RUNTIMES["onnxruntime-cuda"], open=lambda path, threads: None)
    monkeypatch.setitem(RUNTIMES, "onnxruntime-cuda", row)
    card = exported.card.model_copy(update={"precision": "int8"})
    quantized = replace(exported, card=card)
    can = [
        SYSTEMS[OWN_ON_GPU].is_another(Service(each, 16, 16, 16)) for each in (exported, quantized)
    ]
    assert can == [True, False]


def test_a_torch_model_is_refused_before_anything_is_timed(
    teacher: Artifact, texts: list[str]
) -> None:
    with pytest.raises(ModelError, match="torch"):
        begin(teacher, texts, QUICK)


@pytest.mark.parametrize("padded", [None, 16])
def test_rivals_run_the_same_model(
    padded: int | None, exported: Artifact, texts: list[str]
) -> None:
    local = open_classifier(exported, threads=1)
    plain = PlainModel(exported.path, 16, padded)
    expected = local.logits([(text,) for text in texts])
    np.testing.assert_allclose(plain.logits(texts), expected, atol=1e-4)


@pytest.mark.server
@pytest.mark.parametrize("name", ["padded", "padded-to-longest", "unbatched"])
def test_rivals_in_triton_answer_every_text_of_a_request(
    name: str, exported: Artifact, texts: list[str]
) -> None:
    expected = PlainModel(exported.path, 16, None).logits(texts[:3])
    with SYSTEMS[name].start(Service(exported, 16, 16, 16)) as opened:
        logits = asyncio.run(logits_of(opened, texts[:3]))
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_HTTP)
def test_rivals_over_http_return_the_logits_of_each_request(
    name: str, exported: Artifact, texts: list[str]
) -> None:
    if missing := SYSTEMS[name].missing:
        pytest.skip(f"{', '.join(missing)} is not installed here")
    expected = PlainModel(exported.path, 16, None).logits(texts[:6])
    with SYSTEMS[name].start(Service(exported, 16, 16, 16)) as opened:
        logits = asyncio.run(logits_over_http(opened, [texts[:1], texts[1:3], texts[3:6]]))
    np.testing.assert_allclose(np.concatenate(logits), expected, atol=1e-4)


async def logits_over_http(opened: Open, requests: list[list[str]]) -> list[Any]:
    """Send requests at once; return the logits of each."""
    client: Any = opened()

    async def sent(texts: list[str]) -> Any:
        async with client.session.post(client.url, data=client.prepare(texts).body) as response:
            return (await response.json())["logits"]

    try:
        return await asyncio.gather(*map(sent, requests))
    finally:
        await client.close()


async def logits_of(opened: Open, texts: list[str]) -> np.ndarray:
    client: Any = opened()
    try:
        request = service_pb2.ModelInferRequest.FromString(client.prepare(texts).body)
        reply = await client.sender.infer(request.SerializeToString())
    finally:
        await client.close()
    response = service_pb2.ModelInferResponse.FromString(reply)
    return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(len(texts), -1)


class SlowClient(BenchmarkClient):
    """A server that runs the requests of all clients as one batch, which takes its time."""

    def __init__(self, batch_s: float) -> None:
        self.batch_s = batch_s

    def prepare(self, texts: Sequence[str]) -> Request:
        return Request("", b"", {})

    async def send(self, request: Request) -> Outcome:
        await asyncio.sleep(self.batch_s)
        return "ok"

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("batch_s", "longest_s", "speed"),
    [(0.01, 0.5, 200), (0.12, 0.5, 2 / 0.12), (0.3, 1.0, 2 / 0.3), (0.4, 0.2, 2 / 0.4)],
)
def test_a_slow_server_is_measured_for_as_long_as_it_needs(
    batch_s: float, longest_s: float, speed: float
) -> None:
    """Two clients of one text each; the last needs longer than the longest measurement."""
    config = ServingConfig(duration_s=0.1, warmup_s=0.02, longest_s=longest_s)
    system = StartedSystem(lambda: SlowClient(batch_s), ["a"], config)
    measured = ServingRun.of_load("toy", system.closed(Load(texts_per_request=1, clients=2)))
    assert 0.05 * speed < measured.texts_per_second < 1.5 * speed
    assert measured.outcomes["ok"] >= 2


def test_an_interrupted_benchmark_continues_after_its_last_round(
    exported: Artifact, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    cells = [CeilingCell(texts_per_call=1, texts_per_second=100, p50_ms=10)]

    @contextmanager
    def start(service: Service) -> Iterator[Open]:
        starts.append(service.workload)
        if len(starts) == 4:
            raise KeyboardInterrupt
        yield lambda: SlowClient(0.01)

    monkeypatch.setitem(SYSTEMS, "toy", System("toy", start))
    monkeypatch.setattr(rounds, "time_in_process", lambda *asked: cells)
    out = tmp_path / "serving.json"
    quick = {"rounds": 3, "limits": False, "systems": ("toy",), "longest_s": 0.15}
    config = QUICK.model_copy(update=quick)
    with pytest.raises(KeyboardInterrupt):
        begin(exported, texts, config, out).run()
    early = ServingBenchmark.model_validate_json(out.read_text(encoding="utf-8"))
    assert len(early.visits) == len(early.ceilings) == 3, "whole rounds alone"
    result = begin(exported, texts, config, out).run()
    assert result.visits[:3] == early.visits and len(starts) == 4 + 3
    places = [(visit.round, visit.workload) for visit in result.visits]
    assert places == [(number, name) for number in range(3) for name in WORKLOADS]
    assert ServingBenchmark.model_validate_json(out.read_text(encoding="utf-8")) == result
    again = begin(exported, texts, config, out)
    assert again.is_finished and again.run() == result and len(starts) == 4 + 3
    with pytest.raises(typer.BadParameter, match="was made with other config"):
        begin(exported, texts, config.model_copy(update={"seed": 1}), out)


def test_a_server_without_any_response_is_an_error() -> None:
    class Silent(SlowClient):
        async def send(self, request: Request) -> Outcome:
            await asyncio.sleep(0.05)
            return "failed"

    config = ServingConfig(duration_s=0.1, warmup_s=0, longest_s=0.1)
    run = StartedSystem(lambda: Silent(0.0), ["a"], config).closed(Load(1, 1))
    with pytest.raises(LoadTestError, match="no response at all"):
        ServingRun.of_load("toy", run)


def test_what_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fastapi = SYSTEMS["fastapi"]
    assert replace(fastapi, needs=("json", "no_such_package")).missing == ["no_such_package"]
    assert all(row.missing == [] for name, row in SYSTEMS.items() if name not in OPTIONAL)


def run_of(load: str, speed: float, p50_ms: float) -> ServingRun:
    return ServingRun(
        load=load,
        texts_per_second=speed,
        p50_ms=p50_ms,
        p99_ms=2 * p50_ms,
        outcomes={"ok": 1},
        latency_ms=(p50_ms,),
    )


def made_up(own: float = 96.0, added_ms: float = 0.4, ratio: float = 4.0) -> ServingBenchmark:
    """Return three rounds in which the ceiling is 100 texts/s, and 1 ms for a text."""
    places = [(workload, number) for workload in WORKLOADS for number in range(3)]
    speeds = {OWN: own, PADDED: own / 4, "unbatched": own / 2}
    wobble = (0.999, 1.0, 1.001)
    return ServingBenchmark(
        task="toy",
        name="onnx",
        digest="0",
        precision="float32",
        parameters=1,
        config=ServingConfig(),
        workloads={
            name: TextLengths(texts=9, median=5.0, p95=8.0, longest=9, rounded=16)
            for name in WORKLOADS
        },
        ceilings=tuple(
            Ceiling(
                workload=workload,
                round=number,
                cells=tuple(
                    CeilingCell(texts_per_call=size, texts_per_second=speed, p50_ms=1.0)
                    for size, speed in zip(CALLS, (60.0, 100.0, 90.0), strict=True)
                ),
                load=QUIET,
            )
            for workload, number in places
        ),
        visits=tuple(
            ServingVisit(
                system=system,
                workload=workload,
                round=number,
                runs=tuple(
                    run_of(load, speed * wobble[number], 1 + added_ms * wobble[number])
                    for load in LOADS
                ),
                load=QUIET,
            )
            for workload, number in places
            for system, speed in speeds.items()
        ),
        limits=tuple(
            ServingLimit(
                system=system,
                workload=workload,
                slo_p99_ms=50.0,
                limit=Limit(slo_p99_ms=50, rate=rate, above=1.05 * rate),
                reason=None,
                load=QUIET,
            )
            for workload in WORKLOADS
            for system, rate in ((OWN, 10 * ratio), (PADDED, 10.0))
        ),
        left_out={"fastapi": "fastapi", "litserve": "litserve"},
        environment=environment(),
    )


QUIET = MachineLoad(other_work=0.01, steal=0.0)
VERDICTS = {
    "all are reached": ({}, ["reached"] * 4),
    "the ceiling is missed at 16": ({"own": 90.0}, ["missed", *["reached"] * 3]),
    "the ceiling is missed": ({"own": 80.0}, ["missed"] * 2 + ["reached"] * 2),
    "too much is added": ({"added_ms": 0.6}, ["reached", "reached", "missed", "reached"]),
    "not told apart": ({"own": 95.0}, ["not distinguished from it", *["reached"] * 3]),
    "not fast enough": ({"ratio": 2.0}, [*["reached"] * 3, "missed"]),
    "near three times": ({"ratio": 3.02}, [*["reached"] * 3, "not distinguished from it"]),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_reading_follows_the_intervals(name: str) -> None:
    changes, sides = VERDICTS[name]
    lines = serving_reading(made_up(**changes))
    assert len(lines) == len(WORKLOADS) * len(AIMS)
    assert [line.rpartition(": ")[2] for line in lines[: len(AIMS)]] == [f"{x}." for x in sides]


def test_a_figure_that_is_missing_is_said() -> None:
    result = made_up().model_copy(update={"limits": ()})
    assert "no figure of times the padded" in serving_reading(result)[3]
    limit = made_up().limits[0].model_copy(update={"limit": None, "reason": "none holds"})
    lines = serving_reading(made_up().model_copy(update={"limits": (limit,)}))
    assert "no figure of times the padded" in lines[3]


def test_no_table_is_made_from_a_part_of_the_rounds(tmp_path: Path) -> None:
    whole = made_up()
    path = tmp_path / "result.json"
    for part in ({"ceilings": whole.ceilings[:-1]}, {"limits": whole.limits[:-1]}):
        path.write_text(whole.model_copy(update=part).model_dump_json())
        with pytest.raises(ConfigError, match=r"result\.json is not finished"):
            serving_block("result.json", path)


def test_the_table_is_made_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(made_up().model_dump_json())
    text = serving_block("result.json", path)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    first = rows[:8]  # headings, the ceiling, and what was measured or left out
    assert {len(row) for row in rows} == {8}
    assert first[2][1:] == ["100", "-", "100", "-", "1.00", "-", "-"]
    assert first[3][:3] == ["bertender", "96", "0.96 [0.96, 0.96]"]
    assert first[3][5:] == ["1.40", "0.40 [0.40, 0.40]", "40"]
    assert first[4][1] == "24" and first[4][-1] == "10"
    assert first[5][-1] == "-" and first[6][0] == "FastAPI and uvicorn (not installed)"
    assert first[7][0] == "LitServe (not installed)"
    assert "Raw: `result.json`" in text and "other work had 1.0%" in text


def only(result: ServingBenchmark, systems: Mapping[str, str]) -> ServingBenchmark:
    """Return the visits of some systems, by the names that they are to have."""
    visits = tuple(
        each.model_copy(update={"system": systems[each.system]})
        for each in result.visits
        if each.system in systems
    )
    config = result.config.model_copy(update={"limits": False})
    return result.model_copy(update={"visits": visits, "limits": (), "config": config})


FOUR_TIMES = "4.00x [4.00, 4.00]"


def test_a_gpu_is_compared_with_the_cpu_of_the_same_file_alone(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("both.json", "gpu.json")}
    both = only(made_up(own=24.0), {PADDED: OWN, OWN: OWN_ON_GPU})  # PADDED has a quarter
    files["both.json"].write_text(both.model_dump_json())
    alone = only(made_up(own=30.0), {OWN: OWN_ON_GPU})
    alone = alone.model_copy(update={"precision": "float16"})
    files["gpu.json"].write_text(alone.model_dump_json())
    text = gpu_servers_block(files)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[1:7] for row in rows[2:5]] == [
        ["float32", "bertender", "1.40", "-", "6", "-"],
        ["float32", "bertender, on the GPU", "1.40", "1.00x [1.00, 1.00]", "24", FOUR_TIMES],
        ["float16", "bertender, on the GPU", "1.40", "-", "30", "-"],
    ]
    assert len(rows) == 2 + 3 * len(WORKLOADS) and "Raw: `both.json`, `gpu.json`" in text
    assert "; 3 starts of each server;" in text and "1 text a request: 32," in text
    assert serving_reading(alone) == []  # the aims are of our endpoint on the CPU
    files["gpu.json"].write_text(alone.model_copy(update={"parameters": 2}).model_dump_json())
    with pytest.raises(ConfigError, match=r"gpu\.json and both\.json differ"):
        gpu_servers_block(files)


def test_of_two_packages_with_the_same_files_one_has_run() -> None:
    names = "onnxruntime", "onnxruntime-gpu", "openvino"
    installed = environment().model_copy(update={"versions": {"onnxruntime": "1", "numpy": "2"}})
    assert versions_of(installed, names, on_gpu=False) == "onnxruntime 1"
    versions = {"onnxruntime": "1", "onnxruntime-gpu": "3"}
    both = installed.model_copy(update={"versions": versions})
    assert versions_of(both, names, on_gpu=True) == "onnxruntime-gpu 3"
    assert versions_of(both, names, on_gpu=False) == "onnxruntime 1"


@pytest.mark.server
@pytest.mark.slow
def test_the_command_writes_what_it_measured(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "load_task", lambda config: task)
    monkeypatch.setattr(prepared, "WORKLOADS", {"natural": WORKLOADS["natural"]})
    app = typer.Typer()
    app.command()(serving.run)
    words = [str(exported.path), "--out", str(tmp_path / "times.json"), "--noisy", "--no-pin"]
    words += ["--duration-s", "0.1", "--no-limits", "--systems", f"{OWN},{OWN},"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "natural, bertender, round 3: one caller " in done.output
    written = ServingBenchmark.model_validate_json((tmp_path / "times.json").read_text())
    assert len(written.visits) == 3 and written.limits == ()
    assert written.config.pins == NOT_PINNED and written.config.duration_s == 0.1
    assert "is finished: nothing is measured" in CliRunner().invoke(app, words).output


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize(("slo_p99_ms", "held"), [(0.001, False), (10_000.0, True)])
def test_the_limit_is_looked_for_on_the_system_itself(
    slo_p99_ms: float, held: bool, exported: Artifact, texts: list[str]
) -> None:
    with started(SYSTEMS[OWN], Service(exported, 16, 16, 16), texts, QUICK) as asked:
        limit, reason = asked.limit(slo_p99_ms, first_rate=64.0)
    late = "load generator" in (reason or "")  # where tests share the cores
    assert (limit is not None) is (held and not late)
    assert late or limit is not None or "do not hold a p99" in (reason or "")


def test_noisy_figures_are_not_published(exported: Artifact) -> None:
    with pytest.raises(typer.BadParameter, match="--noisy"):
        serving.run(exported.path, RESULTS / "2026-01-01-toy-serving-cpu.json", noisy=True)


@pytest.mark.parametrize(("disturbed", "holds"), [(0, True), (2, True), (3, False)])
def test_a_disturbed_measurement_is_made_anew_a_few_times(disturbed: int, holds: bool) -> None:
    made: list[int] = []

    def measure() -> int:
        made.append(len(made))
        if len(made) <= disturbed:
            raise MachineBusyError("other work")
        return made[-1]

    if holds:
        assert undisturbed("toy", measure) == disturbed
    else:
        with pytest.raises(MachineBusyError):
            undisturbed("toy", measure)
