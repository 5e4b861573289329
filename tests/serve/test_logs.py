"""What the log of a running server never has, and what of it outlives a crash."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ServingError
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.server.server import Server, _logged
from serve.server.workspace import Workspace
from tests.packages import ROOT
from tests.serve.door.raw_http import exchange
from tests.serve.processes import triton_of
from tests.serve.secret_texts import SECRET
from tests.served import ANY_PORTS


@pytest.fixture
def repository(onnx_artifact: Artifact, tmp_path: Path) -> Path:
    return write_repository(onnx_artifact, tmp_path / "models", ServeConfig(**ANY_PORTS))


@pytest.mark.server
@pytest.mark.slow
def test_the_log_of_a_crash_is_there_after_it(repository: Path) -> None:
    with Server(repository, ServeConfig(**ANY_PORTS, restart=False)) as server:
        triton_of(server).kill()
        with pytest.raises(ServingError, match=r"The log is in (\S+\.log)\.$") as crash:
            server.wait()
    log = Path(str(crash.value).rpartition(" ")[2].rstrip("."))
    assert "Started HTTPService" in log.read_text()
    log.unlink()


def test_a_log_that_was_moved_is_begun_anew(tmp_path: Path) -> None:
    file, messages = tmp_path / "server.log", logging.getLogger("serve")
    with _logged(file):
        messages.warning("first")
        file.rename(tmp_path / "server.log.1")
        messages.warning("second")
    assert file.read_text() == "second\n"


@pytest.mark.fault("strangers scan the server", "they are counted, and fill no disk")
@pytest.mark.server
def test_a_failed_handshake_has_no_line(guarded: Server) -> None:
    before = guarded.log_file.read_text()
    for port in (guarded.config.http_port, guarded.config.grpc_port):
        for _ in range(5):
            exchange(port, b"GET / HTTP/1.1\r\n\r\n")
    assert guarded.log_file.read_text() == before


STARTED = """
import json, sys
from pathlib import Path
from serve.config import ServeConfig
from serve.server.server import Server
from tests.serve.secret_texts import text_statuses

config = ServeConfig(http_port=0, grpc_port=0, metrics_port=0, log_file=Path("-"))
with Server(Path(sys.argv[1]), config) as server:
    statuses = list(text_statuses(server))
print(json.dumps(statuses), file=sys.stderr)
"""


@dataclass(frozen=True)
class Ended:
    """A process that has served the texts, and the log of its server on standard output."""

    log: str
    statuses: list[int]


@pytest.fixture(scope="module")
def ended(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("logged") / "models"
    repository = write_repository(onnx_artifact, folder, ServeConfig(**ANY_PORTS))
    command = [sys.executable, "-c", STARTED, str(repository)]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=120)
    errors = done.stderr.decode()
    assert done.returncode == 0, errors
    return Ended(done.stdout.decode(errors="replace"), json.loads(errors.splitlines()[-1]))


@pytest.mark.server
def test_no_text_is_in_the_log(ended: Ended) -> None:
    assert ended.statuses.count(200) >= 5
    assert len([each for each in ended.statuses if each >= 400]) >= 13
    assert SECRET not in ended.log and SECRET[:6] not in ended.log


@pytest.mark.server
def test_the_log_goes_to_standard_output(ended: Ended) -> None:
    assert "Started HTTPService" in ended.log


def test_a_greatest_size_is_of_a_file() -> None:
    with pytest.raises(ConfigError, match=r"log_file=- and log_max_mb=5\.0: only a file"):
        ServeConfig.parse({"log_file": "-", "log_max_mb": 5})


@pytest.mark.server
@pytest.mark.parametrize("name", [".", "file/server.log"], ids=["a folder", "below a file"])
def test_a_log_that_cannot_be_written_is_named_before_the_start(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = tmp_path / name
    server = Server(tmp_path, ServeConfig(**ANY_PORTS, log_file=log))
    with pytest.raises(ConfigError, match=f"log_file={log}: .+ --log-file"), server:
        pass
    assert server.door is None


def test_a_log_that_cannot_be_saved_does_not_hide_the_reason(tmp_path: Path) -> None:
    server = Server(tmp_path, ServeConfig(**ANY_PORTS), Workspace(tmp_path / "none"))
    server.door = subprocess.Popen(["false"])
    with pytest.raises(ServingError, match=r"status 1: its log has no reason.+not be saved"):
        server.wait()
