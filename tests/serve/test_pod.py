"""The pod of deploy/kubernetes, run as it is written: its user, its folders, its limits, its proxy.

No cluster and no image: namespaces of Linux, in which the root is read-only, /tmp and /dev/shm are
the pod's volumes, and the loopback address is its own.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from tests.deployed import KUBERNETES, Container, containers
from tests.packages import ROOT
from tests.serve.nginx import nginx_binary
from tests.serve.proxies import skipped_where_absent
from tests.serve.test_dockerfile import the

MODEL, CONFIG = Path("/mnt/model"), Path("/mnt/etc")
"""Where the pod's /model and /etc/bertender are here: nothing can be made in a root that others
use."""

DRIVER = """
import json, os, signal, subprocess, sys, time, urllib.error, urllib.request
from pathlib import Path

server_words, proxy_words, probe_words = map(json.loads, sys.argv[1:])

def status(url, data=None):
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code

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
server = subprocess.Popen(server_words)
# a runtime of containers gives them to the user, too: nginx opens its own standard output
log = open("/tmp/proxy.log", "w")
proxy = subprocess.Popen(proxy_words, stdout=log, stderr=log)
deadline = time.monotonic() + 120
found = {}
try:
    while probe := subprocess.run(probe_words).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    api = "http://127.0.0.1:8080/v2"
    found = {
        "user": [os.getuid(), os.getgid()],
        "written": written,
        "probe": probe,
        "ready": status(f"{api}/health/ready"),
        "classify": status(f"{api}/models/classifier/infer", body),
        "too large": status(f"{api}/models/classifier/infer", b" " * (2**20 + 1)),
        "administration": status(f"{api}/repository/index", b""),
        "metrics": status("http://127.0.0.1:8082/metrics"),
    }
finally:
    proxy.send_signal(signal.SIGQUIT)
    server.terminate()
    found["ended"] = [server.wait(40), proxy.wait(10)]
found["left"] = [each.name for each in Path("/tmp").glob("bertender*")]
found["left"] += [each.name for each in Path("/dev/shm").iterdir()]
print(Path("/tmp/proxy.log").read_text())
print(json.dumps(found))
"""

NAMESPACES = ("unshare", "--mount", "--net")


def prepared_by(own: Container, artifact: Path, size: str) -> str:
    """Return the lines of a shell that lay out the pod's folders in namespaces of its own."""
    python, hidden = Path(sys.base_prefix), None
    for each in reversed(python.parents):  # of another user's home, most likely
        if hidden is None and not each.stat().st_mode & 0o001:
            hidden = each
    found = [
        "set -e",
        "ip link set lo up",
        "mount --make-rprivate /",
        "mount -t tmpfs -o mode=755 tmpfs /mnt",
        f"mkdir {MODEL} {CONFIG} /mnt/python",
        f"mount --bind {shlex.quote(str(artifact))} {MODEL}",
        f"cp {shlex.quote(str(KUBERNETES / 'proxy' / 'nginx.conf'))} {CONFIG}",
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
            f"mount -t tmpfs -o mode=1777,size={size} tmpfs /dev/shm",
            "mount -o remount,ro,bind /mnt",
            "mount -o remount,ro,bind /",
            'exec "$@"',
        ]
    )


@pytest.mark.server
@pytest.mark.one_path
@pytest.mark.parametrize("name", ["base", "kserve"])
def test_the_pod_runs_as_it_is_written(name: str, onnx_artifact: Artifact) -> None:
    own = dict(containers())[name]
    with skipped_where_absent():
        nginx = nginx_binary()
    for program in (*NAMESPACES[:1], "setpriv", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    if os.geteuid() or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("this user may have no namespaces with another user in them")
    if any(Path(each).is_relative_to("/tmp") for each in (sys.executable, ROOT)):
        pytest.skip("the pod has a /tmp of its own, and this checkout lies in /tmp")
    user, group = the("USER").split(":")
    as_user = ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups")
    as_user += ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
    settings = dict(word.split("=", 1) for word in the("ENV").split() if "PATH" not in word)
    variables = {
        **settings,
        "HOME": "/tmp",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    size = own.mounts["/dev/shm"]["emptyDir"]["sizeLimit"].removesuffix("i").lower()
    layout = ("sh", "-c", prepared_by(own, onnx_artifact.path, size), "pod")
    words = [*json.loads(the("ENTRYPOINT")), str(MODEL), *own.container["args"][1:]]
    proxy = [
        nginx,
        *(each.replace("/etc/bertender", str(CONFIG)) for each in own.proxy["command"][1:]),
    ]
    probe = own.probes["startup"]["exec"]["command"]
    arguments: list[Any] = [json.dumps(list(map(str, each))) for each in (words, proxy, probe)]
    done = subprocess.run(
        [*NAMESPACES, *layout, *as_user, sys.executable, "-c", DRIVER, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "user": [int(user), int(group)],
        "written": ["/tmp", "/dev/shm"],
        "probe": 0,
        "ready": 200,
        "classify": 200,
        "too large": 413,
        "administration": 404,
        "metrics": 200,
        "ended": [0, 0],
        "left": [],
    }
