"""Files and directories that are never half-written (tests of artifacts kill their writers)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bertender.core.files import SCRATCH, replacing, replacing_directory, scratch_folder


class Kind:
    """What is written whole: a file, or a directory with a file in it."""

    def __init__(self, inside: str, context: Callable[..., AbstractContextManager[Path]]) -> None:
        self.inside = inside
        self.context = context

    def content(self, place: Path) -> str:
        return (place / self.inside).read_text()

    def put(self, place: Path, text: str) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        if self.inside:
            place.mkdir(exist_ok=True)
        (place / self.inside).write_text(text)


KINDS = {"file": Kind("", replacing), "directory": Kind("a.txt", replacing_directory)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.mark.parametrize("existing", [False, True])
def test_replaced_when_the_block_ends_well(tmp_path: Path, kind: Kind, existing: bool) -> None:
    place = tmp_path / "deep" / "result"
    if existing:
        kind.put(place, "old")
    with kind.context(place) as draft:
        (draft / kind.inside).write_text("new")
        assert place.exists() is existing, "nothing changes before the end"
    assert kind.content(place) == "new" and list(place.parent.iterdir()) == [place]
    assert place.stat().st_mode & 0o444 == 0o444, "as readable as any other"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_one(
    tmp_path: Path, kind: Kind, error: type[BaseException]
) -> None:
    place = tmp_path / "result"
    kind.put(place, "old")
    with pytest.raises(error), kind.context(place) as draft:
        (draft / kind.inside).write_text("half")
        raise error
    assert kind.content(place) == "old" and list(tmp_path.iterdir()) == [place]


def test_what_killed_processes_left_is_swept(tmp_path: Path, kind: Kind) -> None:
    place = tmp_path / "result[1]"
    running = tmp_path / f".result[1].draft-{os.getppid()}-x"
    for leftover in (running, tmp_path / ".result[1].draft-1999999999-x"):
        kind.put(leftover, "half")
    with kind.context(place) as draft:
        (draft / kind.inside).write_text("new")
    assert set(tmp_path.iterdir()) == {place, running}, "a running process keeps its draft"


@pytest.mark.parametrize(("umask", "modes"), [("022", "644 755"), ("077", "600 700")])
def test_what_a_user_keeps_private_stays_so(umask: str, modes: str, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; out = Path(sys.argv[1])\n"
        "from bertender.core.files import replacing_directory, save_text\n"
        "save_text('private', out / 'file')\n"
        "with replacing_directory(out / 'folder'): pass\n"
        "print(*(f'{(out / name).stat().st_mode & 0o777:o}' for name in ('file', 'folder')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        umask=int(umask, 8),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == modes


KILLED = """
import os, signal
from bertender.core.files import scratch_folder
with scratch_folder() as folder:
    (folder / "model").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_temporary_files_of_killed_processes_go_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(f"{SCRATCH}*/model")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (link := tmp_path / f"{SCRATCH}link").symlink_to(elsewhere)
    with scratch_folder() as outer, scratch_folder() as inner:
        assert outer.is_dir() and inner.is_dir() and not left.parent.exists()
    assert {*tmp_path.iterdir()} == {elsewhere, link} and not [*elsewhere.iterdir()]


def test_a_folder_that_is_not_locked_yet_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process begins at the same time."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make = tempfile.mkdtemp

    def meanwhile(prefix: str) -> str:
        monkeypatch.setattr(tempfile, "mkdtemp", make)
        folder = make(prefix=prefix)
        with scratch_folder():
            return folder

    monkeypatch.setattr(tempfile, "mkdtemp", meanwhile)
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not [*tmp_path.iterdir()]
