"""What deploy/ runs, run as it is written: its user, its folders, its limits, its probes.

No cluster and no image: namespaces of Linux, in which the root is read-only, /tmp and /dev/shm are
the pod's volumes, and the loopback address is its own. Where the kernel lets it, the memory of all
processes is limited as the pod's is.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from serve.config import ServeConfig
from serve.door.callers import digest
from tests.deployed import compose_service, containers, parsed_arguments
from tests.packages import ROOT
from tests.serve.certificates import SECRET, make_certificate
from tests.serve.test_dockerfile import the

PLACES = {"/model": "/mnt/model", "/mnt/models": "/mnt/model", "/etc/bertender": "/mnt/etc"}
"""Where folders of the container are here: nothing can be made in a root that others use."""
IMAGE = {"/model/.": "/mnt/image/.", "/copy": "/mnt/model"}
"""Likewise, of the container that copies the model."""

DRIVER = '''
import http.client, json, os, ssl, subprocess, sys, threading, time, urllib.error, urllib.request
from pathlib import Path
from urllib.parse import urlsplit

pod = json.loads(sys.argv[1])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

def status(url, data=None):
    headers = {"Content-Type": "application/json", **pod["headers"]}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0

def status_of_head(url, size):
    """Return what comes back before a body of a size is sent: nobody reads it."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    if address.scheme == "https":
        connection = http.client.HTTPSConnection(address.hostname, address.port, context=context)
    connection.putrequest("POST", address.path)
    for name, value in {**pod["headers"], "Content-Length": str(size)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse().status

def is_written(path):
    try:
        Path(path, "probe").touch()
        Path(path, "probe").unlink()
        return True
    except OSError:
        return False

text = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["apple"]}
body = json.dumps({"inputs": [text]}).encode()
written = [path for path in ("/", "/etc", "/tmp", "/dev/shm") if is_written(path)]
for words in pod["initial"]:
    subprocess.run(words, check=True)
server = subprocess.Popen(pod["server"])
deadline = time.monotonic() + 120
found = {}
try:
    while status(pod["startup"]) != 200:
        if server.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    api = pod["api"]
    infer = f"{api}/models/classifier/infer"
    found = {
        "user": [os.getuid(), os.getgid()],
        "written": written,
        "probes": [status(url) for url in pod["probes"]],
        "health check": subprocess.run(pod["health check"]).returncode,
        "classify": status(infer, body),
        "too large": status_of_head(infer, 13 * 2**20),
        "administration": status(f"{api}/repository/index", b""),
        "metrics": status(pod["metrics"]),
    }
    # more than the door holds at a time
    seen = []
    flood = [
        threading.Thread(target=lambda: seen.append(status(infer, b" " * (12 * 2**20))))
        for _ in range(32)
    ]
    for each in flood:
        each.start()
    for each in flood:
        each.join()
    # 0: the connection was closed while the client still sent a body that was refused
    found["flood"] = len(seen), sorted(set(seen) - {0, 400, 503})
    found["afterwards"] = status(infer, body)
finally:
    server.terminate()
    found["ended"] = server.wait(40)
found["left"] = [each.name for each in Path("/tmp").glob("bertender*")]
found["left"] += [each.name for each in Path("/dev/shm").iterdir()]
print(json.dumps(found))
'''

NAMESPACES = ("unshare", "--mount", "--net")


@dataclass(frozen=True)
class Pod:
    """What runs, with paths as in the container."""

    arguments: Sequence[str]
    shared_memory: str
    memory_bytes: int
    probes: Sequence[str] = ()
    """URLs, that of the start first."""
    initial: Sequence[Sequence[str]] = ()
    health_check: Sequence[str] = ()

    @property
    def config(self) -> ServeConfig:
        return parsed_arguments(self.arguments)[1]

    def driven(self) -> dict[str, object]:
        """Return what the driver is told, with paths as they are here."""
        server = [*json.loads(the("ENTRYPOINT")), *self.arguments]
        config = self.config
        scheme = "https" if config.tls_certificate else "http"
        door = f"{scheme}://127.0.0.1:{config.http_port}/v2"
        probes = self.probes or [f"{door}/health/ready"]
        by_default = ["python", "-m", "serve.probe", "--url", door.removesuffix("/v2")]
        return {
            "server": [moved(word, PLACES) for word in server],
            "initial": [[moved(word, IMAGE) for word in words] for words in self.initial],
            "startup": probes[0],
            "probes": probes,
            "health check": self.health_check or by_default,
            "api": door,
            "metrics": f"{scheme}://127.0.0.1:{config.metrics_port}/metrics",
            "headers": {"Authorization": f"Bearer {SECRET}"} if config.api_keys else {},
        }


def moved(word: str, places: Mapping[str, str]) -> str:
    """Return a word of a command line with a path as it is here."""
    for place, here in places.items():
        option, sign, value = word.rpartition("=")
        if value == place or (value.startswith(f"{place}/") and place in PLACES):
            return f"{option}{sign}{here}{value.removeprefix(place)}"
    return word


def pods() -> dict[str, Pod]:
    found = {}
    for name, own in containers():
        found[name] = Pod(
            arguments=own.container["args"],
            shared_memory=own.mounts["/dev/shm"]["emptyDir"]["sizeLimit"].removesuffix("i").lower(),
            memory_bytes=size_bytes(own.container["resources"]["limits"]["memory"]),
            probes=[own.probed_url(kind) for kind in ("startup", "readiness", "liveness")],
            initial=[each["command"] for each in own.initial],
        )
    service = compose_service()
    found["compose"] = Pod(
        arguments=service["command"],
        shared_memory=service["shm_size"],
        memory_bytes=size_bytes(service["mem_limit"]),
        health_check=service["healthcheck"]["test"][1:],
    )
    return found


def size_bytes(quantity: str) -> int:
    return {"1Gi": 2**30, "1g": 2**30}[quantity]


def prepared_by(pod: Pod, artifact: Path, secrets: Path, group: Path | None) -> str:
    """Return the lines of a shell that lay out the pod's folders in namespaces of its own."""
    python, hidden = Path(sys.base_prefix), None
    for each in reversed(python.parents):  # of another user's home, most likely
        if hidden is None and not each.stat().st_mode & 0o001:
            hidden = each
    source = "/mnt/image" if pod.initial else "/mnt/model"
    found = [
        "set -e",
        *([f"echo $$ > {group}/cgroup.procs"] if group else []),
        "ip link set lo up",
        "mount --make-rprivate /",
        "mount -t tmpfs -o mode=755 tmpfs /mnt",
        "mkdir /mnt/image /mnt/model /mnt/etc /mnt/python",
        f"mount --bind {shlex.quote(str(artifact))} {source}",
        *(["mount -t tmpfs -o mode=1777 tmpfs /mnt/model"] if pod.initial else []),
        f"mount --bind {shlex.quote(str(secrets))} /mnt/etc",
        f"mount --bind {shlex.quote(str(python))} /mnt/python",
    ]
    if hidden:
        found += [
            f"mount -t tmpfs -o mode=755 tmpfs {hidden}",
            f"mkdir -p {python}",
            f"mount --bind /mnt/python {python}",
        ]
    return "\n".join(
        [
            *found,
            "mount -t tmpfs -o mode=1777 tmpfs /tmp",
            f"mount -t tmpfs -o mode=1777,size={pod.shared_memory} tmpfs /dev/shm",
            "mount -o remount,ro,bind /mnt",
            "mount -o remount,ro,bind /",
            'exec "$@"',
        ]
    )


@contextmanager
def memory_limited(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a control group of so much memory; None where this user may make none."""
    root, file = Path("/sys/fs/cgroup"), "memory.max"
    if (root / "memory" / "memory.limit_in_bytes").exists():
        root, file = root / "memory", "memory.limit_in_bytes"
    group = root / f"bertender-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        (group / file).write_text(str(limit_bytes))
    except OSError:  # its parent does not hand the control of memory down
        group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """The folder of files that a container reads: a certificate, its key, and keys of callers."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for file in make_certificate(folder):
        file.chmod(0o644)
    (folder / "api-keys").write_text(f"shop {digest(SECRET)}\n", encoding="ascii")
    return folder


PODS = pods()


@pytest.mark.server
@pytest.mark.one_path
@pytest.mark.parametrize("name", PODS)
def test_the_pod_runs_as_it_is_written(name: str, onnx_artifact: Artifact, secrets: Path) -> None:
    pod = PODS[name]
    for program in (*NAMESPACES[:1], "setpriv", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    if os.geteuid() or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("this user may have no namespaces with another user in them")
    if any(Path(each).is_relative_to("/tmp") for each in (sys.executable, ROOT)):
        pytest.skip("the pod has a /tmp of its own, and this checkout lies in /tmp")
    user, group = the("USER").split(":")
    as_user = (
        *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
        *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
    )
    settings = dict(word.split("=", 1) for word in the("ENV").split() if "PATH" not in word)
    variables = {
        **settings,
        "HOME": "/tmp",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    with memory_limited(pod.memory_bytes) as control:
        layout = ("sh", "-c", prepared_by(pod, onnx_artifact.path, secrets, control), "pod")
        done = subprocess.run(
            [
                *NAMESPACES,
                *layout,
                *as_user,
                sys.executable,
                "-c",
                DRIVER,
                json.dumps(pod.driven()),
            ],
            env=variables,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "user": [int(user), int(group)],
        "written": ["/tmp", "/dev/shm"],
        "probes": [200] * max(1, len(pod.probes)),
        "health check": 0,
        "classify": 200,
        "too large": 413,
        "administration": 403,
        "metrics": 200,
        "flood": [32, []],
        "afterwards": 200,
        "ended": 0,
        "left": [],
    }
