"""Shared memory: for this user alone, and too little is named before anything starts."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertender.core.errors import ServingError
from serve.backend.model import close_region
from serve.config import ServeConfig
from serve.repository.config_pbtxt import CONFIG_NAME, triton, write_model_config
from serve.server.server import Server
from serve.server.supervisor import SHARED_MEMORY, keep_files_private
from serve.server.workspace import REGION_BYTES, check_shared_memory, needed_bytes
from tests.served import ANY_PORTS


@pytest.mark.server
def test_too_little_shared_memory_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    model = triton.ModelConfig(name="classifier", input=[triton.ModelInput()] * 2)
    (tmp_path / "models" / "classifier").mkdir(parents=True)
    write_model_config(tmp_path / "models" / "classifier" / CONFIG_NAME, model)
    server = Server(tmp_path / "models", ServeConfig(**ANY_PORTS))
    with pytest.raises(
        ServingError,
        match=r"1\.0 MiB free, and the server needs 26\.0 .*--shm-size.*of `bertender serve`",
    ):
        server.__enter__()
    assert server.door is None and not server.workspace.path.exists()


def test_no_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(shutil, "disk_usage", missing)
    with pytest.raises(ServingError, match="no shared memory at /dev/shm: No such file"):
        check_shared_memory(ServeConfig())


def test_each_copy_of_each_model_takes_its_own() -> None:
    one = needed_bytes(ServeConfig())
    assert needed_bytes(ServeConfig(instances=3)) == 3 * one
    assert needed_bytes(ServeConfig(), [1, 1]) == 2 * one


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("queue", [5, 256])
def test_it_holds_queue_batch_and_body(queue: int, columns: int) -> None:
    settings = {"max_batch_size": 8, "max_queue_texts": queue, "max_text_bytes": 1000}
    texts = max(queue, 8) + 8 + 8
    needed = needed_bytes(ServeConfig(**settings), [columns])
    assert needed == REGION_BYTES + texts * columns * 1000


@pytest.mark.server
@pytest.mark.parametrize("served", ["triton"], indirect=True)
def test_no_other_user_reads_the_texts_of_requests(served: Server) -> None:
    regions = list(SHARED_MEMORY.glob(f"{served.workspace.shared_memory}*"))
    assert regions
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}
    if os.getuid() != 0:
        pytest.skip("needs root to be another user")
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os._exit(sum(os.access(region, os.R_OK | os.W_OK) for region in regions))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        (("/opt/triton_python_backend_stub", "model.py", "region", "1048576"), True),
        (("/opt/triton_python_backend_stub", "model.py", "/region", "1048576"), True),
        (("/opt/python", "model.py", "region"), False),
        (("/opt/triton_python_backend_stub",), False),
        (("/opt/triton_python_backend_stub", "model.py"), False),
        (("/opt/triton_python_backend_stub", "model.py", ""), False),
        (("/opt/triton_python_backend_stub", "model.py", ".."), False),
        (("/opt/triton_python_backend_stub", "model.py", "../regions/region"), False),
    ],
)
def test_a_stub_closes_its_region_and_nothing_else(
    words: tuple[str, ...], closed: bool, tmp_path: Path
) -> None:
    region = tmp_path / "regions" / "region"
    region.parent.mkdir(mode=0o755)
    region.touch()
    region.chmod(0o644)
    folders = [each.stat().st_mode for each in (tmp_path, region.parent)]
    close_region("".join(f"{word}\0" for word in words).encode(), region.parent)
    assert stat.S_IMODE(region.stat().st_mode) == (0o600 if closed else 0o644)
    assert [each.stat().st_mode for each in (tmp_path, region.parent)] == folders


@pytest.mark.parametrize("where", ["of a command", "of what it starts"])
def test_a_file_is_its_owners_however_a_command_asks_for_it(where: str, tmp_path: Path) -> None:
    """As boost does, which makes the regions: it sets the mode once more, whatever the umask."""
    line = (
        "import os, sys; file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644); "
        "os.fchmod(file, 0o644)"
    )
    words = [sys.executable, "-c", line, str(tmp_path / "region")]
    if where == "of what it starts":
        words = ["sh", "-c", '"$@"; exit', "sh", *words]
    subprocess.run(words, check=True, preexec_fn=keep_files_private)
    assert stat.S_IMODE((tmp_path / "region").stat().st_mode) == 0o600
