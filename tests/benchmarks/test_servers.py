"""Servers that are compared: each answers, and load and bad clients are recorded."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import bad_clients, servers, serving, soak, startup
from benchmarks.harness import read_runs
from benchmarks.plain_servers import PlainModel
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task

NO_PINS = servers.Pins()
LOADS = {"one caller": (1, 1), "1 text a request": (1, 2), "16 texts a request": (4, 2)}


@pytest.fixture(scope="module")
def texts(task: Task) -> list[str]:
    return [text for (text,) in task.dev.examples]


@pytest.fixture
def toy(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "texts_of", lambda task: texts)


def service_of(artifact: Artifact) -> servers.Service:
    return servers.Service(artifact, longest=64, workload=32)


def test_the_plain_model_predicts_as_the_artifact(exported: Artifact, texts: list[str]) -> None:
    theirs = PlainModel(exported.path, 64).logits(texts)
    ours = open_classifier(exported).logits([(text,) for text in texts])
    assert np.abs(theirs - ours).max() < 1e-4
    padded = PlainModel(exported.path, 64, 64).logits(texts)
    assert np.abs(theirs - padded).max() < 1e-4


def test_only_graphs_of_single_texts_are_served(teacher: Artifact) -> None:
    with pytest.raises(ModelError, match="serves 'onnx' artifacts of one"):
        servers.servable(teacher.path)


def test_cores_are_this_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert servers.pins_of(False) == NO_PINS
    monkeypatch.setattr(os, "sched_getaffinity", lambda number: {0})
    with pytest.raises(ConfigError, match="--no-pin"):
        servers.pins_of(True)


def test_a_repository_has_what_its_row_says(exported: Artifact, tmp_path: Path) -> None:
    for name, size in (("padded", 64), ("unbatched", 0)):
        server = servers.SERVERS[name]
        assert isinstance(server, servers.PlainTriton)
        server.write(tmp_path / name, service_of(exported))
        config = (tmp_path / name / "classifier" / "config.pbtxt").read_text()
        assert f"max_batch_size: {size}" in config
        assert ("dynamic_batching" in config) == (size > 0)
        assert 'key: "padded_length" value { string_value: "' in config


def test_servers_that_cannot_run_here_are_left_out(exported: Artifact) -> None:
    service = service_of(exported)
    assert servers.SERVERS["bertender"].serves(service)
    assert not servers.SERVERS["bertender-cuda"].serves(service)
    whole = servers.Service(exported, longest=64, workload=64)
    assert not servers.SERVERS["padded-to-longest"].serves(whole)
    installed = importlib.util.find_spec("fastapi") is not None
    assert servers.SERVERS["fastapi"].serves(service) == installed


def test_long_tailed_texts_have_the_lengths_that_are_drawn(
    exported: Artifact, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LONG_TAILED_TEXTS", 50)
    count = servers.token_counter(exported)
    lengths = [count(text) for text in serving.long_tailed(texts, count, 64)]
    assert len(lengths) == 50 and max(lengths) == 64 and min(lengths) < 16


def test_the_model_in_process_is_timed(
    exported: Artifact, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CALLS", (1, 4))
    rows = serving.in_process(exported, texts, 0.05)
    assert [row["texts_per_call"] for row in rows] == [1, 4]
    assert all(row["texts_per_second"] > 0 and row["p50_ms"] > 0 for row in rows)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("name", ["bertender", "bertender-http", "padded", "unbatched", "fastapi"])
def test_a_server_answers(name: str, exported: Artifact, texts: list[str]) -> None:
    server = servers.SERVERS[name]
    if not server.serves(service_of(exported)):
        pytest.skip("not installed")
    with servers.started(server, service_of(exported), texts, NO_PINS) as asked:
        run = asked.closed(4, 2, 0.3, 0.1)
    assert run.outcomes["ok"] > 0 and Counter(run.outcomes).total() == run.outcomes["ok"]


@pytest.mark.server
@pytest.mark.slow
def test_rounds_of_servers_become_a_table(
    exported: Artifact, toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOADS", LOADS)
    monkeypatch.setattr(serving, "LONG_TAILED_TEXTS", 50)
    settings: dict[str, Any] = {"systems": "bertender,fastapi", "rounds": 2, "duration_s": 0.2}
    serving.run(exported.path, tmp_path / "serving.json", pin=False, **settings)
    runs = read_runs(tmp_path / "serving.json")
    first, second, *_ = serving.table(runs).rows
    assert first[0] == "the model in process" and second[0] == "bertender"
    assert serving.long_table(runs).rows and serving.gpu_table(runs).rows


@pytest.mark.slow
@pytest.mark.server
def test_a_soak_reads_memory_and_overloads(exported: Artifact, toy: None, tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    soak.run(exported.path, 50.0, out, minutes=0.01, segment_s=0.4, pin=False)
    (run,) = read_runs(out)
    kinds = [row["kind"] for row in run.rows]
    assert kinds == ["segment"] * 5 + ["overload", "overload by default"]
    assert {*run.rows[0]["memory"]["bytes_of"]} == {"stub", "server", "supervisor", "door"}
    assert soak.table([run]).rows[0][0].startswith("Memory, after")


@pytest.mark.slow
@pytest.mark.server
def test_bad_clients_act_beside_good_ones(
    exported: Artifact, toy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("malformed JSON", "truncated body", "wrong shape")
    monkeypatch.setattr(bad_clients, "KINDS", {kind: bad_clients.KINDS[kind] for kind in chosen})
    out = tmp_path / "bad.json"
    # a client in a process of its own has all kinds
    monkeypatch.setattr(bad_clients, "acting", in_this_process)
    bad_clients.run(exported.path, 100.0, out, rounds=2, seconds=0.5, pin=False)
    (run,) = read_runs(out)
    rows = {row[0]: row for row in bad_clients.table([run]).rows}
    assert {*rows} == {*chosen}
    assert rows["wrong shape"][1] == "400"


def in_this_process(kind: str, place: bad_clients.Place) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def acts() -> Iterator[dict[str, int]]:
        yield dict(bad_clients.KINDS[kind](place, lambda wait_s: True))

    return acts()


@pytest.mark.server
@pytest.mark.slow
def test_a_bad_client_acts_until_it_is_stopped(exported: Artifact, texts: list[str]) -> None:
    with servers.endpoint(exported, texts, NO_PINS, over_http=True) as (server, _):
        port = int(server.http_url.rpartition(":")[2])
        with bad_clients.acting("malformed JSON", ("127.0.0.1", port)) as responses:
            assert responses == {}
        assert sum(responses.values()) >= 1


@pytest.mark.server
@pytest.mark.slow
def test_a_start_is_timed(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "load_task", lambda config: task)
    startup.run(exported.path, tmp_path / "startup.json", times=1, pin=False)
    (run,) = read_runs(tmp_path / "startup.json")
    roles = {each["role"] for each in run.rows[0]["memory"]}
    assert {"command", "server", "stub"} <= roles
    assert startup.table([run]).rows[0][0] == "`--server triton`"
