"""The commands that docs/serving.md shows: each is run as it stands there, or listed as not run.

Ports, addresses and paths outside of the folder are replaced by free ones. Where a command would
measure for minutes, it gets short times.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from bertender.core.artifact import Artifact
from bertender.core.files import CACHE_VARIABLE
from bertender.core.machine import data_directory
from bertender.tasks.task import Task
from serve import tuning as measuring
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.launch import IN_FLIGHT_TIMEOUT_S, STOP_TIMEOUT_S, is_ready
from serve.probe import main as probe
from serve.server import server as serve_server
from serve.server.ports import with_free_ports
from serve.server.server import TritonServer
from tests.deployed import DEPLOY, parsed_arguments
from tests.front import last_line, succeed, write_csv
from tests.packages import ROOT
from tests.serve.haproxy import SOCKET, Proxy
from tests.serve.layouts import lay_out
from tests.serve.nginx import configured, is_listening, nginx_binary
from tests.serve.proxies import skipped_where_absent
from tests.serve.proxy_process import proxy_process
from tests.serve.test_tuning import Visits
from tests.served import ANY_PORTS, PORTS
from tests.test_docs import DEFAULT_ADDRESS, served_by, text_of

PAGE = "docs/serving.md"

ENDPOINT = "tests/test_docs.py::test_the_endpoint_answers_as_the_page_says"
COMMANDS = "tests/test_docs.py::test_the_commands_of_a_page_run"
ACCESS = "tests/serve/test_client_access.py::test_the_page_says_how"
OWN = str(Path(__file__).relative_to(ROOT))
MODELS = f"{OWN}::test_several_models_are_served_and_asked"
DEPLOYED = f"{OWN}::test_a_version_is_deployed_to_an_address"
TUNED = f"{OWN}::test_settings_are_tuned"
NGINX = f"{OWN}::test_the_proxy_starts_with_keys_of_its_own"
HAPROXY = f"{OWN}::test_replicas_are_shared_and_drained"

RUN: Mapping[str, str] = {
    "bertender serve mine/int8": ENDPOINT,
    'bertender classify "a text of yours"': ENDPOINT,
    "curl --silent --fail http://127.0.0.1:8000/v2/models/classifier/infer": ENDPOINT,
    "import bertender": ENDPOINT,
    "import asyncio": ENDPOINT,
    "bertender serve mine/int8 --page": f"{OWN}::test_the_demo_page_is_there",
    "bertender classify --input dev.csv --output answers.parquet": ENDPOINT,
    f"bertender loadtest {DEFAULT_ADDRESS} --input dev.csv --rate 20 --duration-s 5"
    " --plot load.svg": ENDPOINT,
    f"bertender loadtest {DEFAULT_ADDRESS} --input dev.csv --concurrency 8"
    " --texts-per-request 4": ENDPOINT,
    f"bertender loadtest {DEFAULT_ADDRESS} --input dev.csv --find-limit --slo-p99-ms 50"
    " --out limit.json": ENDPOINT,
    "bertender serve tone=mine/int8 topic=other/int8": MODELS,
    'bertender classify "a text of yours" --model topic': MODELS,
    "bertender serve mine/int8 --admin-token-file token": DEPLOYED,
    f"bertender deploy mine/int8-new --to {DEFAULT_ADDRESS} --admin-token-file token": DEPLOYED,
    'python -c "import tritonclient.grpc as triton; triton.InferenceServerClient('
    "'127.0.0.1:8001').load_model('classifier')\"": (
        f"{OWN}::test_a_version_is_deployed_to_a_directory"
    ),
    "bertender tune mine/int8 --input dev.csv": TUNED,
    "bertender tune mine/int8 --task sst2 --objective p99 --slo-p99-ms 20": TUNED,
    "bertender serve mine/int8 --tritonserver /opt/tritonserver/bin/tritonserver": (
        f"{OWN}::test_another_server_is_started"
    ),
    """printf '"Bearer %s" shop;\\n' "$(openssl rand -hex 32)" > api-keys.conf""": NGINX,
    """nginx -p "$PWD" -c nginx.conf -g 'daemon off;'""": NGINX,
    'bertender classify "a text of yours" --url https://localhost:8443 --ca-file server.pem'
    " --api-key-file key.txt": ACCESS,
    'curl --cacert server.pem -H "Authorization: Bearer KEY"'
    " https://localhost:8443/v2/models/classifier/ready": NGINX,
    "from pathlib import Path": ACCESS,
    "bertender serve mine/int8 --instances 1 --threads-per-instance 1 --grpc-port 8001": HAPROXY,
    "bertender serve mine/int8 --instances 1 --threads-per-instance 1 --http-port 8010"
    " --grpc-port 8011 --metrics-port 8012": HAPROXY,
    "haproxy -f deploy/haproxy/haproxy.cfg": HAPROXY,
    'echo "set server http_replicas/first state drain" | socat stdio /run/haproxy/admin.sock': (
        HAPROXY
    ),
    f"python -m serve.probe --url {DEFAULT_ADDRESS} --timeout-s 20": (
        f"{OWN}::test_the_probe_passes"
    ),
    "bertender serve mine/int8 --repository-only repository": COMMANDS,
    "bertender lint-repository repository": COMMANDS,
    "bertender serve mine/onnx --repository-only gpu-repository --runtime triton-onnxruntime"
    " --gpu": COMMANDS,
}
"""First line of a command or of a block of Python -> the test that runs it."""

NO_GPU = "no GPU here; tests/models/test_cuda_predictor.py has what is refused without one"

NOT_RUN: Mapping[str, str] = {
    "bertender verify mine/onnx mine/onnx --runtime onnxruntime-cuda": NO_GPU,
    "bertender serve mine/onnx --runtime onnxruntime-cuda": NO_GPU,
    "docker build --file deploy/Dockerfile --tag bertender-serve:0.1.0 .": (
        "no Docker here; test_dockerfile.py checks the file, and test_serve_extra.py runs a server"
        " as locked down as that of the image"
    ),
    "docker run --network host --read-only --tmpfs /tmp --shm-size 64m": (
        "no Docker here; the same tests"
    ),
    "docker run --gpus all --network host --shm-size 1g": (
        "neither Docker nor NVIDIA's container here; what is run inside is parsed below"
    ),
    "docker build --file deploy/Dockerfile.model --tag bertender-model:1 mine/int8": (
        "no Docker here; test_kubernetes.py reads the file, and test_pod.py runs what it is for"
    ),
    **{
        f"kubectl {words}": "no cluster here; test_kubernetes.py checks the objects of that folder"
        for words in (
            "apply -k deploy/kubernetes/base",
            "apply -k deploy/kubernetes/fill",
            "wait --for=condition=Ready pod/bertender-fill",
            "cp mine/int8/. bertender-fill:/model",
            "delete pod bertender-fill",
            "apply -k deploy/kubernetes/overlays/claim",
        )
    },
}
"""First line of a command -> why no test runs it, and what is checked instead."""


def shown() -> list[str]:
    """The first line of every command and of every block of Python, in the order of the page."""
    lines = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text_of(PAGE), re.S | re.M):
        whole = [block] if language == "python" else re.split(r"(?<!\\)\n", block.strip())
        lines += [each.partition("\n")[0].removesuffix(" \\") for each in whole]
    return lines


def test_every_command_of_the_page_is_run_or_listed() -> None:
    assert sorted(shown()) == sorted([*RUN, *NOT_RUN])


@pytest.mark.parametrize("place", sorted({*RUN.values()}))
def test_the_test_of_a_command_exists(place: str) -> None:
    file, _, function = place.partition("::")
    assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> list[str]:
    """The lines of the page that the requesting test has to run."""
    own = f"{OWN}::{request.function.__name__}"
    return [line for line in shown() if RUN.get(line) == own]


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


@pytest.mark.server
def test_the_demo_page_is_there(folder: Path, lines: list[str]) -> None:
    (line,) = lines
    with (
        served_by([*words_of(line), "--page-port", "0"]) as urls,
        urlopen(urls["page"], timeout=30) as response,
    ):
        assert response.status == 200 and b"<title>" in response.read()


@pytest.mark.server
def test_several_models_are_served_and_asked(folder: Path, lines: list[str]) -> None:
    serve, classify = lines
    with served_by(words_of(serve)) as urls:
        asked = succeed("classify", *words_of(classify), "--url", urls["http"], "--json")
        assert len(last_line(asked)) == 1
        assert [probe(["--url", urls["http"], "--model", name]) for name in ("tone", "topic")] == [
            0,
            0,
        ]


@pytest.mark.server
def test_a_version_is_deployed_to_an_address(folder: Path, lines: list[str]) -> None:
    serve, deploy = lines
    with served_by(words_of(serve)) as urls:
        succeed("deploy", *words_of(deploy.replace(DEFAULT_ADDRESS, urls["http"])))
        assert versions_at(urls["http"]) == ["2"]


def versions_at(url: str) -> list[str]:
    """The versions of the classifier that a server answers with."""
    with urlopen(f"{url}/v2/models/classifier", timeout=30) as response:
        return list(json.load(response)["versions"])


@pytest.mark.server
def test_a_version_is_deployed_to_a_directory(
    folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a Triton whose administrative routes are open, as one that its user has started."""
    (load,) = lines
    (deploy,) = re.findall(r"`(bertender deploy [^`]+ --to repository)`", text_of(PAGE))
    (write,) = (each for each in shown() if each.endswith("--repository-only repository"))
    succeed("serve", *words_of(write))
    monkeypatch.setattr(serve_server, "closing_arguments", lambda token: {})
    monkeypatch.setattr(serve_server, "check_closed", lambda host, port: None)
    with TritonServer(folder / "repository", PORTS) as server:
        succeed("deploy", *words_of(deploy))
        assert versions_at(server.http_url) == ["1"]
        run_python(load.replace("127.0.0.1:8001", f"127.0.0.1:{server.config.grpc_port}"))
        assert versions_at(server.http_url) == ["2"]


def run_python(line: str) -> None:
    """Run a line that begins with `python`, which must exit with 0."""
    python, *words = shlex.split(line)
    assert python == "python"
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_are_tuned(
    folder: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what is measured, for which test_tuning.py has real servers."""
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "cache"))
    monkeypatch.setattr(measuring, "visit", Visits({}))
    for line in lines:
        if "--task" in line and not data_directory():
            continue
        result = last_line(succeed("tune", *words_of(line), "--noisy", "--json"))
        assert len(result["tried"]) > 1 and Path(result["path"]).is_file()


@pytest.mark.server
def test_another_server_is_started(folder: Path, lines: list[str]) -> None:
    (line,) = lines
    lay_out(folder / "opt" / "tritonserver", "2.51.0")
    words = words_of(line.replace(" /opt/", f" {folder}/opt/"))
    with served_by(words) as urls, Endpoint(urls["http"]) as endpoint:
        assert endpoint.classify([("a text of yours",)])[0].label


@pytest.mark.server
def test_the_probe_passes(lines: list[str], served: TritonServer) -> None:
    (line,) = lines
    run_python(line.replace(DEFAULT_ADDRESS, served.http_url))


@pytest.mark.server
def test_the_proxy_starts_with_keys_of_its_own(
    lines: list[str], served: TritonServer, tmp_path: Path
) -> None:
    keys, start, ask = lines
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    with skipped_where_absent():
        start = start.replace("nginx ", f"{shlex.quote(nginx_binary())} ", 1)
        proxy = configured(served.config.http_port, tmp_path)
    subprocess.run(["bash", "-c", keys], cwd=tmp_path, check=True)
    (key,) = re.findall(r'^"Bearer (\w{64})" shop;$', (tmp_path / "api-keys.conf").read_text())
    ask = f"{ask.replace(':8443', f':{proxy.port}')} --silent --fail"
    words = ["bash", "-c", f"exec {start}"]
    with proxy_process(words, tmp_path, lambda: is_listening(proxy.port)):
        for own, is_allowed in ((key, True), ("0" * 64, False)):
            words = ["bash", "-c", ask.replace("KEY", own)]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
            assert (done.returncode == 0) is is_allowed, done.stderr


@pytest.mark.server
@pytest.mark.slow
def test_replicas_are_shared_and_drained(folder: Path, lines: list[str]) -> None:
    """Without socat, whose part the test takes."""
    first, second, start, drain = lines
    if shutil.which("haproxy") is None:
        pytest.skip("no haproxy here: install it")
    with (
        served_by(words_of(first)) as one,
        served_by(words_of(second)) as other,
        haproxy_before(start, [one, other], folder) as proxy,
    ):
        wait_until(lambda: proxy.uses(0) and proxy.uses(1))
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
            wait_until(lambda: is_ready("127.0.0.1", own.http_port, ("classifier",)))
            yield Proxy(own.http_port, own.grpc_port, folder, process)
        finally:
            process.terminate()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
    page = re.sub(r"\s*\\\n\s*", " ", text_of(PAGE))
    inside = [
        *re.findall(r"bertender-serve:0\.1\.0 (/model .+?)`", page),
        *re.findall(r"&& bertender serve (/model .+?)\"$", page, re.M),
    ]
    configs = [parsed_arguments(shlex.split(words))[1] for words in inside]
    assert {config.host for config in configs} == {"127.0.0.1"}
    assert [config.gpu for config in configs] == [False, True]


def test_files_that_are_not_run_are_there() -> None:
    for line in NOT_RUN:
        for path in re.findall(r"deploy/[\w/]+", line):
            assert (ROOT / path).exists(), path


def test_the_times_of_the_end_are_those_of_the_code() -> None:
    (section,) = re.findall(r"^### The end\n(.+?)^#", text_of(PAGE), re.S | re.M)
    assert f"still runs after `{STOP_TIMEOUT_S} s` is killed" in section
    assert f"Triton itself gives them `{IN_FLIGHT_TIMEOUT_S} s`" in section
