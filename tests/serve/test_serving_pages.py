"""The commands of docs/serving/ that need a server, a proxy or a file, each run as it stands there.

Ports, addresses and paths outside of the folder are replaced by free ones. Where a command would
measure for minutes, it gets short times. tests/test_docs.py runs the others.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from benchmarks.bare_triton import bare_triton
from bertender.core.artifact import Artifact
from bertender.core.machine import data_directory
from bertender.tasks.task import Task
from serve import tuning as measuring
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.probe import main as probe
from serve.server.addresses import with_free_ports
from serve.server.server import Server
from tests.deployed import DEPLOY, parsed_arguments
from tests.front import last_line, succeed, write_csv
from tests.packages import ROOT
from tests.serve.haproxy import SOCKET, Proxy
from tests.serve.layouts import lay_out
from tests.serve.processes import is_ready
from tests.serve.test_tuning import Visits
from tests.served import ANY_PORTS, until
from tests.test_docs import DEFAULT_ADDRESS, DOCS, GUARDED_ADDRESS, served_by, text_of

SERVING = "\n".join(text_of(page) for page in DOCS if page.startswith("docs/serving/"))


def shown(start: str) -> str:
    """The first line of the command of the pages that begins so."""
    (line,) = re.findall(rf"^({re.escape(start)}.*?)(?: \\)?$", SERVING, re.M)
    return str(line)


def words_of(line: str) -> list[str]:
    """The words after `bertender COMMAND`."""
    return shlex.split(line)[2:]


@pytest.fixture
def folder(
    plain_export: Callable[[str], tuple[Artifact, Artifact]],
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Where a user is: a tiny model and a file by the names of the page."""
    _, artifact = plain_export("bert")
    for name in ("mine/int8", "mine/int8-new", "other/int8"):
        shutil.copytree(artifact.path, tmp_path / name)
    write_csv(tmp_path / "dev.csv", task.dev, task.labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.server
def test_the_demo_page_is_there(folder: Path) -> None:
    line = shown("bertender serve mine/int8 --page")
    with (
        served_by(words_of(line)) as urls,
        urlopen(urls["page"], timeout=30) as response,
    ):
        assert response.status == 200 and b"<title>" in response.read()


@pytest.mark.slow
@pytest.mark.server
def test_several_models_are_served_and_asked(folder: Path) -> None:
    serve = shown("bertender serve tone=")
    classify = shown('bertender classify "a text of yours" --model')
    with served_by(words_of(serve)) as urls:
        asked = succeed("classify", *words_of(classify), "--url", urls["http"], "--json")
        assert len(last_line(asked)) == 1
        assert [probe(["--url", urls["http"], "--model", name]) for name in ("tone", "topic")] == [
            0,
            0,
        ]


@pytest.mark.slow
@pytest.mark.server
def test_a_version_is_deployed_to_an_address(folder: Path) -> None:
    serve = shown("bertender serve mine/int8 --admin-token-file")
    deploy = shown("bertender deploy mine/int8-new --to http")
    with served_by(words_of(serve)) as urls:
        succeed("deploy", *words_of(deploy.replace(DEFAULT_ADDRESS, urls["http"])))
        assert versions_at(urls["http"]) == ["2"]


def versions_at(url: str) -> list[str]:
    """The versions of the classifier that a server answers with."""
    with urlopen(f"{url}/v2/models/classifier", timeout=30) as response:
        return list(json.load(response)["versions"])


@pytest.mark.slow
@pytest.mark.server
def test_a_version_is_deployed_to_a_directory(folder: Path) -> None:
    """For a Triton whose administrative routes are open, as one that its user has started."""
    load = shown('python -c "import tritonclient')
    (deploy,) = re.findall(r"`(bertender deploy [^`]+ --to repository)`", SERVING)
    write = shown("bertender serve mine/int8 --repository-only")
    succeed("serve", *words_of(write))
    with bare_triton(folder / "repository", folder / "run") as triton:
        succeed("deploy", *words_of(deploy))
        assert versions_at(triton.http_url) == ["1"]
        run_python(load.replace("127.0.0.1:8001", f"127.0.0.1:{triton.grpc_port}"))
        assert versions_at(triton.http_url) == ["2"]


def run_python(line: str) -> None:
    """Run a line that begins with `python`, which must exit with 0."""
    python, *words = shlex.split(line)
    assert python == "python"
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_are_tuned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to what is measured, for which test_tuning.py has real servers."""
    monkeypatch.setattr(measuring, "visit", Visits({}))
    for line in re.findall("^bertender tune .+$", SERVING, re.M):
        if "--task" in line and not data_directory():
            continue
        result = last_line(succeed("tune", *words_of(line), "--noisy", "--json"))
        assert len(result["tried"]) > 1 and ("--out" not in line or Path("tuned.json").is_file())


@pytest.mark.slow
@pytest.mark.server
def test_another_server_is_started(folder: Path) -> None:
    (option,) = re.findall(r"`(--tritonserver /opt/\S+)`", SERVING)
    lay_out(folder / "opt" / "tritonserver", "2.51.0")
    words = shlex.split(option.replace(" /opt/", f" {folder}/opt/"))
    with served_by(["mine/int8", *words]) as urls, Endpoint(urls["http"]) as endpoint:
        assert endpoint.classify([("a text of yours",)])[0].label


@pytest.mark.server
def test_the_probe_passes(served: Server) -> None:
    line = shown("python -m serve.probe")
    run_python(line.replace(DEFAULT_ADDRESS, served.http_url))


@pytest.mark.server
def test_the_first_deployment_takes_requests_with_a_key_alone(folder: Path) -> None:
    certificate, ask = shown("openssl req"), f"{shown('curl --cacert ')} --silent --fail"
    for program in ("openssl", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    subprocess.run(shlex.split(certificate), check=True, capture_output=True)
    made = succeed("api-key", *words_of(shown("bertender api-key shop")))
    (key,) = re.findall(r"this once: (\S+)$", made.stdout, re.M)
    succeed("api-key", *words_of(shown("bertender api-key batch")))
    names = [line.split()[0] for line in Path("api-keys").read_text().splitlines()]
    assert names == ["shop", "batch"]
    with served_by(words_of(shown("bertender serve mine/int8 --host"))) as urls:
        ask = ask.replace(GUARDED_ADDRESS, urls["http"].replace("127.0.0.1", "localhost"))
        for own, is_allowed in ((key, True), ("0" * 43, False)):
            done = subprocess.run(shlex.split(ask.replace("KEY", own)), capture_output=True)
            assert (done.returncode == 0) is is_allowed, done.stderr


@pytest.mark.server
@pytest.mark.slow
def test_replicas_are_shared_and_drained(folder: Path) -> None:
    """Without socat, whose part the test takes."""
    first, second = re.findall(r"^bertender serve .+--threads-per-instance.+$", SERVING, re.M)
    start, drain = shown("haproxy -f"), shown("echo ")
    if shutil.which("haproxy") is None:
        pytest.skip("no haproxy here: install it")
    with (
        served_by(words_of(first)) as one,
        served_by(words_of(second)) as other,
        haproxy_before(start, [one, other], folder) as proxy,
    ):
        until(lambda: proxy.uses(0) and proxy.uses(1))
        send_as_socat(drain, folder)
        assert [proxy.uses(place) for place in (0, 1)] == [False, True]
        with Endpoint(proxy.grpc_url) as endpoint:
            assert endpoint.classify([("a text of yours",)])[0].label
        send_as_socat(drain.replace("state drain", "state ready"), folder)
        assert [proxy.uses(place) for place in (0, 1)] == [True, True]


UPSTREAM = {"8000": (0, "http"), "8010": (1, "http"), "8001": (0, "grpc"), "8011": (1, "grpc")}
"""Port of a server in the file of deploy/ -> the replica that stands for it, and the protocol."""


@contextmanager
def haproxy_before(
    line: str, replicas: Sequence[Mapping[str, str]], folder: Path
) -> Iterator[Proxy]:
    """Run a line that starts haproxy, where deploy/ has the ports of these replicas."""
    own = with_free_ports(ServeConfig(**ANY_PORTS))
    ports = {"8080": own.http_port, "8081": own.grpc_port}
    for number, (place, protocol) in UPSTREAM.items():
        ports[number] = int(replicas[place][protocol].rpartition(":")[2])
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text(encoding="utf-8")
    text = re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: str(ports[port[0]]), text)
    path = folder / "deploy" / "haproxy" / "haproxy.cfg"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace(str(SOCKET), str(folder / SOCKET.name)), encoding="utf-8")
    with (
        (folder / "haproxy.log").open("wb") as log,
        subprocess.Popen(shlex.split(line), cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            until(lambda: is_ready("127.0.0.1", own.http_port, ("classifier",)))
            yield Proxy(own.http_port, own.grpc_port, folder, process)
        finally:
            process.terminate()


def send_as_socat(line: str, folder: Path) -> None:
    """Send haproxy what a line pipes into socat; it says nothing where all is well."""
    echo, command, pipe, *socat = shlex.split(line)
    assert [echo, pipe, *socat] == ["echo", "|", "socat", "stdio", str(SOCKET)]
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(20)
        admin.connect(str(folder / SOCKET.name))
        admin.sendall(f"{command}\n".encode())
        assert admin.recv(1024).strip() == b""


def test_what_runs_in_a_container_is_a_command_of_serve() -> None:
    """Docker's lines are not run: their last words are settings that `serve` takes."""
    page = re.sub(r"\s*\\\n\s*", " ", SERVING)
    inside = [
        *re.findall(r"bertender-serve:0\.1\.0 (/model .+?)`", page),
        *re.findall(r"&& bertender serve (/model .+?)\"$", page, re.M),
    ]
    configs = [parsed_arguments(shlex.split(words))[1] for words in inside]
    assert [config.host for config in configs] == ["0.0.0.0", "127.0.0.1"]
    assert [config.gpu for config in configs] == [False, True]


def test_files_that_are_not_run_are_there() -> None:
    for path in re.findall(r"\bdeploy/[\w./-]+\w", SERVING):
        assert (ROOT / path).exists(), path
