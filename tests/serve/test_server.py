"""The real server: started, refused, and gone without a trace however its owner ends."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, PortTakenError, ServingError
from bertender.models.classifier import open_classifier
from serve import probe
from serve.client.endpoint import classify
from serve.config import DeployConfig, ServeConfig
from serve.repository import write_repository
from serve.server.server import Server, serving
from serve.server.targets import target_of
from serve.server.workspace import Workspace, is_listening, running_servers
from tests.serve.processes import assert_gone, family_of, stub_of
from tests.served import ANY_PORTS, BY_DEFAULT

OWNER = """
import json, sys
from pathlib import Path
from bertender.core.artifact import Artifact
from serve.config import ServeConfig
from serve.server.server import serve_forever

def say(server):
    own = server.workspace
    names = [server.grpc_url, server.config.http_port, str(own.path), own.shared_memory]
    print(json.dumps(names), flush=True)

config = ServeConfig(http_port=0, grpc_port=0, metrics_port=0)
serve_forever(Artifact.load(sys.argv[1]), config, say)
print("stopped cleanly", flush=True)
"""


@dataclass
class Owner:
    """A process in `serve_forever`, everything that it started, and where."""

    process: subprocess.Popen[str]
    url: str
    http_port: int
    workspace: Path
    shared_memory: str
    family: list[psutil.Process]


@contextmanager
def owner_of(artifact: Artifact) -> Iterator[Owner]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(artifact.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        url, http_port, workspace, shared_memory = json.loads(line)
        family = psutil.Process(process.pid).children(recursive=True)
        yield Owner(process, url, http_port, Path(workspace), shared_memory, family)
    finally:
        process.kill()
        process.communicate()


def shared_memory_of(owner: Owner | Workspace) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{owner.shared_memory}*"))


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after(number: signal.Signals, pair_artifact: Artifact) -> None:
    examples = [("apple", "saw"), ("pear plum", "drill " * 20)]
    expected = open_classifier(pair_artifact, threads=1).logits(examples)
    with owner_of(pair_artifact) as owner:
        answers = classify(examples, owner.url)
        np.testing.assert_allclose([answer.logits for answer in answers], expected, atol=1e-5)
        assert len(owner.family) == 3, "supervisor, tritonserver and one stub"
        assert shared_memory_of(owner)
        owner.process.send_signal(number)
        rest, complaints = owner.process.communicate(timeout=30)
        assert_gone(owner.family, timeout_s=20)
    if number != signal.SIGKILL:
        assert (owner.process.returncode, rest) == (0, "stopped cleanly\n"), complaints
    assert not owner.workspace.exists()
    assert not shared_memory_of(owner)


@pytest.mark.server
@pytest.mark.slow
def test_a_second_signal_ends_it_at_once_with_all_that_it_started(onnx_artifact: Artifact) -> None:
    """Even where a request in flight would have been waited for."""
    with owner_of(onnx_artifact) as owner, socket.socket() as unfinished:
        unfinished.connect(("127.0.0.1", owner.http_port))
        head = "POST /v2/models/classifier/infer HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
        unfinished.sendall(head.encode())
        time.sleep(0.5)
        owner.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            owner.process.wait(3)
        owner.process.send_signal(signal.SIGTERM)
        assert owner.process.wait(5) == 0
        assert_gone(owner.family, timeout_s=0)
    assert not owner.workspace.exists() and not shared_memory_of(owner)


@pytest.mark.server
def test_who_writes_into_a_served_artifact_is_told_at_once(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    """And the server goes on with what it has loaded."""
    artifact = Artifact.load(shutil.copytree(onnx_artifact.path, tmp_path / "artifact"))
    with owner_of(artifact) as owner:
        (before,) = classify(["apple saw"], owner.url)
        (artifact.path / "model.onnx").write_bytes(b"another model")
        assert owner.process.stderr is not None
        warning = owner.process.stderr.readline()
        assert f"{artifact.path} were overwritten" in warning and "model.onnx differs" in warning
        assert classify(["apple saw"], owner.url) == [before]


@pytest.mark.server
def test_a_path_may_hold_what_a_shell_would_split(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton starts its stubs by a line of a shell; here without bash, too."""
    folder = tmp_path / "a b;c:d'$e"
    folder.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to(shutil.which("dash") or shutil.which("sh") or "")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PATH", str(programs))
    config = ServeConfig(**ANY_PORTS)
    repository = write_repository(onnx_artifact, folder / "a repository", config)
    with Server(repository, config) as server:
        assert server.workspace.path.parent == folder
        assert classify(["apple saw"], server.http_url)
    assert {each.name for each in folder.iterdir()} == {"a repository"}


@pytest.mark.server
def test_it_listens_on_an_ipv6_address(onnx_artifact: Artifact, tmp_path: Path) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no ::1")
    config = ServeConfig(**ANY_PORTS, host="::1", page=True, admin_token_file=tmp_path / "token")
    with serving(onnx_artifact, config) as server:
        assert server.http_url == f"http://[::1]:{server.config.http_port}"
        labels = [classify(["apple"], url)[0].label for url in (server.http_url, server.grpc_url)]
        assert labels[0] == labels[1]
        assert probe.main(["--url", server.http_url]) == 0
        assert urlopen(f"{server.http_url}/", timeout=10).status == 200
        assert b"nv_inference" in urlopen(server.metrics_url, timeout=10).read()
        (running,) = [
            each for each in running_servers() if each.http_port == server.config.http_port
        ]
        assert is_listening(running)
        config_of_deployment = DeployConfig(admin_token_file=tmp_path / "token")
        target = target_of(server.http_url, config_of_deployment)
        target.control.check_token()  # type: ignore[attr-defined]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def listening(server: Server) -> set[tuple[str, int]]:
    """Return the addresses and ports at which a server listens."""
    assert server.door is not None
    return {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for connection in psutil.Process(server.door.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.server
def test_it_listens_on_loopback_only(served: Server) -> None:
    config = served.config
    ports = (config.http_port, config.grpc_port, config.metrics_port)
    assert listening(served) == {("127.0.0.1", port) for port in ports}


@pytest.mark.server
def test_by_default_nothing_listens_for_grpc(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(**BY_DEFAULT)
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with Server(repository, config) as server:
        ports = (server.config.http_port, server.config.metrics_port)
        assert listening(server) == {("127.0.0.1", port) for port in ports}
        assert classify([("apple saw",)], server.http_url)
        with pytest.raises(ConfigError, match="grpc_port=None: the server has no gRPC"):
            _ = server.grpc_url


@pytest.mark.server
def test_the_models_process_holds_no_training_library(served: Server) -> None:
    """Their compiled code would be mapped there."""
    process = family_of(served)[0] if served.config.is_embedded else stub_of(served)
    mapped = [Path(each.path).name for each in process.memory_maps()]
    assert any(name.startswith("tokenizers") for name in mapped)
    assert not [name for name in mapped if name.startswith(("libtorch", "cygrpc", "_yaml"))]


@pytest.mark.server
def test_a_damaged_model_is_named(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(**ANY_PORTS)
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    model = repository / "classifier" / "1" / "artifact" / "model.onnx"
    damaged = model.read_bytes()[:-9]
    model.unlink()  # it is the artifact's file too
    model.write_bytes(damaged)
    server = Server(repository, config)
    with pytest.raises(ServingError, match=r"artifact .* is damaged: model\.onnx differs"), server:
        pass
    assert not server.workspace.path.exists()
    assert not shared_memory_of(server.workspace)


@pytest.mark.server
def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server = Server(tmp_path, ServeConfig(**{**ANY_PORTS, "http_port": port}))
        with pytest.raises(PortTakenError, match=f"port {port} .*--http-port"), server:
            pass
    assert server.door is None and not server.workspace.path.exists()


@pytest.mark.server
@pytest.mark.slow
def test_a_server_that_dies_is_reported(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(**ANY_PORTS, log_file=tmp_path / "kept.log", restart=False)
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with Server(repository, config) as server:
        family = family_of(server)
        family[0].kill()
        with pytest.raises(ServingError, match="the server ended, status"):
            server.wait()
        assert_gone(family)
    assert not shared_memory_of(server.workspace)
    assert "Started GRPCInferenceService" in (tmp_path / "kept.log").read_text()
