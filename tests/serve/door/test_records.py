"""The access log and the metrics of the door."""

from __future__ import annotations

import json
import queue
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from serve.door.callers import new_key
from serve.door.records import Records, Visit
from tests.serve.door.fake_engine import BREAK, BUSY, FakeEngine, running_door
from tests.serve.door.raw_http import HEAD, body, exchange, get, post


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_for_each_request(tmp_path: Path) -> None:
    file, keys = tmp_path / "access.log", tmp_path / "keys"
    key, row = new_key("reader")
    keys.write_text(row)
    with running_door(access_log=file, api_keys=keys) as door:
        authorized = f"Authorization: Bearer {key}"
        secret = "a secret of 20 chars"
        for text in (secret, "", BUSY, BREAK):
            exchange(door.http_port, post(body({"id": "mine"}, data=[text]), authorized))
        exchange(door.http_port, post(body()))
        exchange(door.http_port, post(body(), authorized, path="/v2/models/other/infer"))
    found = lines(file)
    outcomes = [line["outcome"] for line in found]
    assert outcomes == ["ok", "invalid", "unavailable", "failed", "unauthorized", "unknown"]
    first = found[0]
    assert first["id"] == "mine" and first["key"] == "reader" and first["model"] == "classifier"
    assert first["texts"] == 1 and first["tokens"] == 7 and 0 < first["ms"] < 10_000
    assert first["protocol"] == "http" and abs(first["time"] - time.time()) < 60
    assert secret not in file.read_text() and key not in file.read_text()


def test_a_log_that_is_moved_away_is_opened_anew(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    with running_door(access_log=file) as door:
        exchange(door.http_port, post(body()))
        deadline = time.monotonic() + 10
        while not file.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        file.rename(tmp_path / "access.log.1")
        exchange(door.http_port, post(body()))
    assert len(lines(file)) == len(lines(tmp_path / "access.log.1")) == 1


def test_a_log_that_nobody_writes_holds_no_request_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path / "access.log")
    assert records.log is not None
    records.log.listener.stop()
    records.log.queue = queue.Queue(2)
    for _ in range(5):
        records.log.write(Visit("http", "a"), 0.1)
    assert records.registry.get_sample_value("bertender_door_lost_log_lines_total") == 3


def test_readers_at_once_take_one_thread() -> None:
    """Of an engine that hangs: the watch needs threads too."""

    class Hanging(FakeEngine):
        asked = 0

        async def metrics(self) -> str:
            self.asked += 1
            await self.let_go.wait()
            return "of_the_engine 1\n"

    with running_door(engine := Hanging()) as door, ThreadPoolExecutor(4) as pool:
        readings = [pool.submit(get, door.metrics_port, "/metrics") for _ in range(4)]
        time.sleep(0.5)
        door.call(engine.let_go.set)
        assert all("of_the_engine 1" in each.result().body.decode() for each in readings)
        assert engine.asked == 1
        assert "of_the_engine 1" in get(door.metrics_port, "/metrics").body.decode()
        assert engine.asked == 2


def test_metrics_are_those_of_the_door_and_the_engine() -> None:
    with running_door() as door:
        for text in ("plum", "pear", ""):
            exchange(door.http_port, post(body(data=[text])))
        text = get(door.metrics_port, "/metrics").body.decode()
        assert get(door.http_port, "/metrics").status == 404
    assert 'bertender_door_requests_total{outcome="ok",protocol="http"} 2.0' in text
    assert 'bertender_door_requests_total{outcome="invalid",protocol="http"} 1.0' in text
    assert 'bertender_door_request_seconds_count{protocol="http"} 2.0' in text
    assert "bertender_door_texts_total 2.0" in text
    assert "bertender_door_requests_under_way 0.0" in text
    assert "bertender_door_ready 1.0" in text
    assert text.endswith("of_the_engine 1\n")


@pytest.mark.fault("strangers scan the server", "they are counted, and fill no disk")
def test_what_strangers_send_is_counted_and_has_no_line(tmp_path: Path) -> None:
    file, keys = tmp_path / "access.log", tmp_path / "keys"
    keys.write_text(new_key("reader")[1])
    with running_door(access_log=file, api_keys=keys, most_connections=3) as door:
        for _ in range(3):
            exchange(door.http_port, b"no HTTP\r\n\r\n")
        exchange(door.http_port, f"{HEAD}X: {'a' * 20_000}\r\n\r\n".encode())
        get(door.http_port, "/nowhere")
        get(door.http_port, "/v2/models/classifier/infer")
        get(door.http_port, "/v2")
        get(door.http_port, "/v2/repository/index", method="POST")
        get(door.http_port, "/v2/health/ready")
        with ExitStack() as opened:
            for _ in range(4):
                opened.enter_context(socket.create_connection(("127.0.0.1", door.http_port)))
            time.sleep(0.2)
        with grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel:
            for name, content in (("ServerMetadata", b""), ("ModelInfer", b"\xff")):
                call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
                with pytest.raises(grpc.RpcError):
                    call(content, timeout=20)
        refused = samples(door.door.records, "bertender_door_refused_total")
        assert not file.read_text()
        for _ in range(20):
            exchange(door.http_port, post(body()))
    assert refused == {
        ("http", "400"): 3,
        ("http", "431"): 1,
        ("http", "404"): 1,
        ("http", "405"): 1,
        ("http", "401"): 1,
        ("http", "403"): 1,
        ("http", "503"): 1,
        ("grpc", "UNAUTHENTICATED"): 1,
        ("grpc", "INVALID_ARGUMENT"): 1,
    }
    found = [line["outcome"] for line in lines(file)]
    assert 1 <= len(found) < 10 and {*found} == {"unauthorized"}, "of 20"


def samples(records: Records, name: str) -> dict[tuple[str, ...], float]:
    """Return the series of a metric by protocol and status."""
    return {
        (sample.labels["protocol"], sample.labels["status"]): sample.value
        for family in records.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.fault(
    "the disk of the access log is full", "lines are lost and counted; requests are answered"
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this file")
def test_a_full_disk_loses_lines_and_says_how_many(capfd: pytest.CaptureFixture[str]) -> None:
    records = Records(Path("/dev/full"))
    for _ in range(3):
        with records.visit("http", "a"):
            pass
    records.close()
    assert "bertender_door_lost_log_lines_total 3.0" in records.exposition()
    assert not capfd.readouterr().err
