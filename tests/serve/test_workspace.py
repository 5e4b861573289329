"""The folder of a server: writable, locked while it is used, and swept when nobody is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertender.core.errors import ServingError
from serve.config import ServeConfig
from serve.repository.config_pbtxt import CONFIG_NAME, triton, write_model_config
from serve.server.server import Server
from serve.server.supervisor import remove_abandoned_environments
from serve.server.workspace import WORKSPACE_PREFIX, Workspace, check_temporary_folder, sweep
from tests.served import ANY_PORTS

SHARED_MEMORY = Path("/dev/shm")
KILLED = """
import os, signal, sys
from pathlib import Path
from serve.server.workspace import Workspace

workspace = Workspace()
workspace.create()
(workspace.path / "model.onnx").write_text("large")
Path("/dev/shm", workspace.shared_memory + "region").touch()
if sys.argv[1:]:  # a process of the server, which outlives the others
    os.set_inheritable(workspace.lock, True)
    child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "input()"])
    print(child)
print(workspace.shared_memory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_temporary_folder(tmp_path)
    with pytest.raises(ServingError, match=r"absent cannot be written.*--tmpfs /tmp"):
        check_temporary_folder(tmp_path / "absent")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for temporary files, here and in processes that are started."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield tmp_path
    monkeypatch.undo()


def left_by_a_killed_server(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def regions(name: str) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{name}*"))


@pytest.mark.fault("`serve` and all behind it are killed", "the next start cleans up")
def test_what_a_killed_server_has_left_is_swept_at_the_next_start(temporary: Path) -> None:
    name = left_by_a_killed_server().communicate()[0].strip()
    assert (temporary / name / "model.onnx").exists() and regions(name)
    with Workspace() as workspace:
        assert [*temporary.iterdir()] == [workspace.path] and not regions(name)
    assert [*temporary.iterdir()] == []


def test_what_is_in_use_is_not_swept(temporary: Path) -> None:
    """By this process, or by the last process of a server whose owner was killed."""
    with Workspace() as own:
        killed = left_by_a_killed_server("with a child")
        assert killed.stdout is not None and killed.stdin is not None
        child, name = (killed.stdout.readline().strip() for _ in range(2))
        killed.wait()
        sweep()
        assert {*temporary.iterdir()} == {own.path, temporary / name} and regions(name)
        killed.stdin.close()  # which ends the child
        deadline = time.monotonic() + 20
        while regions(name):
            assert time.monotonic() < deadline, child
            time.sleep(0.05)
            sweep()
        assert [*temporary.iterdir()] == [own.path]


def test_what_is_not_ours_is_not_swept(temporary: Path) -> None:
    """A folder without a lock, one whose lock is a link, one that is a link itself, and one with a
    lock of somebody else's."""
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("bertender-serve-x")
    unlocked, linked = (temporary / f"{WORKSPACE_PREFIX}{name}" for name in ("new", "linked"))
    for folder in (unlocked, linked):
        folder.mkdir()
    (linked / "lock").symlink_to(elsewhere / "lock")
    (temporary / f"{WORKSPACE_PREFIX}link").symlink_to(elsewhere)
    notes = temporary / f"{WORKSPACE_PREFIX}notes"
    notes.mkdir()
    (notes / "lock").write_text("my own lock")
    (notes / "thesis.tex").touch()
    before = sorted(temporary.rglob("*"))
    sweep()
    assert sorted(temporary.rglob("*")) == before


@pytest.mark.server
def test_what_was_left_is_swept_before_shared_memory_is_checked(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be what the server to come lacks."""
    name = left_by_a_killed_server().communicate()[0].strip()
    model = tmp_path_factory.mktemp("models") / "classifier"
    model.mkdir()
    own = triton.ModelConfig(name="classifier", input=[triton.ModelInput()])
    write_model_config(model / CONFIG_NAME, own)
    server = Server(model.parent, ServeConfig(**ANY_PORTS))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(ServingError, match="free, and the server needs"):
        server.__enter__()
    assert not regions(name) and [*temporary.iterdir()] == []


def process(processes: Path, number: int, started_s: float, maps: str) -> None:
    """Write what the kernel says of a process that started so many seconds ago."""
    ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * os.sysconf("SC_CLK_TCK")
    (processes / str(number)).mkdir(parents=True)
    fields = ["S", *["0"] * 18, str(int(ticks))]
    (processes / str(number) / "stat").write_text(f"{number} (a) name) {' '.join(fields)}")
    (processes / str(number) / "maps").write_text(f"7f0-7f1 r-xp 0 08:01 2 {maps}\n")


@pytest.mark.parametrize(
    ("started_s", "maps", "goes"),
    [
        (60, "/opt/backends/python/libtriton_python.so", False),
        (-60, "/opt/backends/python/libtriton_python.so", True),  # younger than the folder
        (60, "/usr/lib/libc.so.6", True),
    ],
)
def test_the_empty_folder_of_an_ended_process_goes(
    started_s: float, maps: str, goes: bool, tmp_path: Path
) -> None:
    """Triton makes one at each start; a process that runs its backend may be its owner."""
    empty, full, other = (tmp_path / f"python_env_{name}" for name in ("abcdef", "ABCDEF", "long"))
    for folder in (empty, full, other):
        folder.mkdir(mode=0o700)
    (full / "0").mkdir()
    process(tmp_path / "proc", 7, started_s, maps)
    remove_abandoned_environments(tmp_path, tmp_path / "proc", least_age_s=0)
    assert empty.exists() is not goes
    assert full.exists() and other.exists()


def test_an_empty_folder_of_another_kind_stays(tmp_path: Path) -> None:
    """One that others may read is not Triton's; a new one may be about to be filled."""
    shared, new = tmp_path / "python_env_backup", tmp_path / "python_env_abcdef"
    shared.mkdir(mode=0o755)
    new.mkdir(mode=0o700)
    remove_abandoned_environments(tmp_path, tmp_path / "proc", least_age_s=0.5)
    assert shared.exists() and new.exists()
    remove_abandoned_environments(tmp_path, tmp_path / "proc", least_age_s=0)
    assert shared.exists() and not new.exists()


def test_a_folder_that_goes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [tmp_path / "python_env_abcdef"]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: gone if "env" in pattern else [])
    remove_abandoned_environments(tmp_path, tmp_path / "proc")
