"""bertender serve: what it refuses, what it writes, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from bertender.cli.serving import _ready
from bertender.core.artifact import Artifact
from bertender.core.errors import ServerMissingError
from bertender.models.classifier import open_classifier
from serve import check
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.repository import is_repository
from serve.server import triton_process
from serve.server.server import Server
from tests.cli.made import Made
from tests.forked import command, start
from tests.front import fail, last_line, succeed
from tests.serve.machines import unlike

ANY_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


def test_a_repository_is_written(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it serves is tried in `test_repository_only`."""
    monkeypatch.setattr(check, "try_repository", lambda *given: None)
    out = tmp_path / "models"
    result = succeed("serve", made["int8"], "--repository-only", out, "--max-batch-size", "7")
    assert result.stdout.startswith(f"model repository: {out}\n")
    assert is_repository(out)
    assert "max_batch_size: 7" in (out / "classifier" / "config.pbtxt").read_text()


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_a_torch_artifact_is_refused(name: str, made: Made, tmp_path: Path) -> None:
    for flags in (ANY_PORTS, ("--repository-only", tmp_path / "models")):
        said = fail("serve", made[name], *flags)
        assert "'torch' artifact; only 'onnx' artifacts are served" in said
        assert "bertender export" in said
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_else_is_not_replaced(made: Made, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("the only copy")
    said = fail("serve", made["int8"], "--repository-only", tmp_path)
    assert "will not be replaced" in said and (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port", "--metrics-port"])
def test_a_taken_port_is_named_with_its_flag(flag: str, made: Made) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        said = fail("serve", made["int8"], *ANY_PORTS, flag, port)
    assert f"port {port}" in said and flag in said


@pytest.mark.server
def test_without_the_binary_it_says_what_to_install(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(binary: Path | None = None) -> None:
        raise ServerMissingError("no Triton server: `bertender install-server`")

    monkeypatch.setattr(triton_process, "find_installation", absent)
    assert "`bertender install-server`" in fail("serve", made["int8"], *ANY_PORTS)


@pytest.mark.parametrize(
    ("engine", "python", "said"),
    [
        (None, "3.12", "without Triton, which `bertender install-server` installs\n"),
        (None, "3.13", "without Triton\n"),
        ("embedded", "3.12", "without Triton\n"),
    ],
)
def test_a_server_without_triton_says_so_and_what_installs_it(
    engine: str | None,
    python: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unlike(monkeypatch, tmp_path, python=python)
    urls = {"http_url": "http://127.0.0.1:8000", "metrics_url": "http://127.0.0.1:8002/metrics"}
    running = SimpleNamespace(config=ServeConfig(server=engine), models=("classifier",), **urls)
    _ready(cast(Server, running), None, as_json=False)
    assert f"server: embedded, {said}" in capsys.readouterr().out


def test_what_a_repository_does_not_hold_is_refused(made: Made, tmp_path: Path) -> None:
    said = fail("serve", made["int8"], "--repository-only", tmp_path / "models", "--restart")
    assert "restart=True: --repository-only starts no server" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("log", ["log-file", "access-log"])
def test_json_and_a_log_do_not_share_an_output(log: str, made: Made) -> None:
    said = fail("serve", made["int8"], *ANY_PORTS, f"--{log}", "-", "--json")
    assert f"{log.replace('-', '_')}=-" in said and "Name a file" in said


def test_a_damaged_model_is_named(made: Made, tmp_path: Path) -> None:
    source = Artifact.load(made["int8"])
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("artifact.json", *source.card.files):
        (broken / name).write_bytes((source.path / name).read_bytes())
    (broken / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in fail("serve", broken, *ANY_PORTS)


@pytest.mark.parametrize(("flag", "value"), [("--max-batch-size", "0"), ("--http-port", "65536")])
def test_values_out_of_range_are_named(flag: str, value: str, made: Made) -> None:
    assert f"{flag[2:].replace('-', '_')}={value}" in fail("serve", made["int8"], flag, value)


@dataclass(frozen=True)
class Serving:
    """A process that runs `bertender serve`, and what it said when it was ready."""

    process: BaseProcess
    urls: dict[str, str]
    said: Path

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals) -> int | None:
        assert self.process.pid
        os.kill(self.process.pid, number)
        self.process.join(60)
        return self.process.exitcode


@contextmanager
def serving(artifact: Path, folder: Path) -> Iterator[Serving]:
    said = folder / "said"
    process = start(command, "serve", artifact, *ANY_PORTS, "--json", said=said)
    try:
        deadline = time.monotonic() + 90
        while not (line := said.with_suffix(".out").read_text()):
            assert process.is_alive() and time.monotonic() < deadline, complaints(said)
            time.sleep(0.05)
        yield Serving(process, json.loads(line), said)
    finally:
        process.kill()
        process.join()


def complaints(said: Path) -> str:
    return said.with_suffix(".err").read_text()


@pytest.mark.server
@pytest.mark.slow
def test_it_serves_until_it_is_told_to_stop(made: Made, tmp_path: Path) -> None:
    with serving(made["int8"], tmp_path) as running:
        answers = last_line(
            succeed("classify", "saw drill", "--url", running.urls["http"], "--json")
        )
        by_grpc = succeed("classify", "--url", running.urls["grpc"], stdin="saw drill\n").stdout
        with Endpoint(running.urls["http"]) as endpoint:
            assert endpoint.text_columns == 1
        family = running.family()
        assert running.stop(signal.SIGTERM) == 0, complaints(running.said)
    local = open_classifier(Artifact.load(made["int8"]), threads=1)
    logits = local.logits([("saw drill",)])[0]
    assert answers[0]["label"] == local.labels[logits.argmax()]
    assert answers[0]["logits"] == pytest.approx(logits.tolist(), abs=1e-5)
    assert by_grpc.startswith(f"{answers[0]['label']}\t")
    assert complaints(running.said) == "", "a clean stop is silent"
    assert running.said.with_suffix(".out").read_text().count("\n") == 1
    psutil.wait_procs(family, timeout=20)
    assert [process for process in family if process.is_running()] == []
