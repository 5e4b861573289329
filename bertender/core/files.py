"""Files and directories that appear whole or not at all, and the cache folder.

A draft next to the destination is synced to disk and renamed. A killed process leaves the old
content or none, never half of it; the next draft for the same destination removes its draft.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertender.core.config import Record
from bertender.core.errors import ConfigError


def _umask() -> int:
    mask = os.umask(0o077)  # it can be read by setting it alone
    os.umask(mask)
    return mask


UMASK = _umask()
FILE_MODE, DIRECTORY_MODE = 0o666 & ~UMASK, 0o777 & ~UMASK
"""Modes of what this user makes; temporary files, and those of some libraries, are private."""


def unusable_parent(path: Path) -> Path | None:
    """Return the nearest existing ancestor of a path if it is not a folder that this user may write
    to."""
    nearest = next(each for each in path.absolute().parents if each.exists())
    return None if nearest.is_dir() and os.access(nearest, os.W_OK) else nearest


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes `path` when the block succeeds, and else is removed.

    A link stays, and the file that it leads to is replaced.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_leftovers(path)
    descriptor, name = tempfile.mkstemp(prefix=_draft_prefix(path), dir=path.parent)
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
        draft.chmod(FILE_MODE)
        _sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def replacing_directory(out: Path) -> Iterator[Path]:
    """Yield an empty directory that replaces `out` when the block ends without an error.

    Any exception, Ctrl-C included, removes the draft and leaves what was at `out`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    _sweep_leftovers(out)
    draft = _new_draft(out)
    try:
        yield draft
        publish(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish(draft: Path, out: Path) -> None:
    """Sync the draft to disk and rename it to `out`, replacing a directory there."""
    draft.chmod(DIRECTORY_MODE)
    sync_directory(draft)
    if not out.exists():
        draft.rename(out)
    else:  # the old directory stays if renaming fails
        old = _new_draft(out)
        try:
            out.rename(old)
            draft.rename(out)
        except BaseException:
            if not out.exists():
                old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync(out.parent)


def sync_directory(directory: Path) -> None:
    """Sync a directory and its content to disk."""
    for path in directory.rglob("*"):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_draft(out: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=_draft_prefix(out), dir=out.parent))


def _draft_prefix(out: Path) -> str:
    """Return the prefix of a draft's name: its destination and its process."""
    return f".{out.name}.draft-{os.getpid()}-"


def _sweep_leftovers(out: Path) -> None:
    """Remove the drafts that killed processes have left next to `out`."""
    for leftover in out.parent.glob(f".{glob.escape(out.name)}.draft-*"):
        process_id = leftover.name.rsplit(".draft-", 1)[1].split("-")[0]
        # a restarted container often reuses the process number of the killed process
        own = process_id == str(os.getpid())
        if not process_id.isdigit() or (not own and Path(f"/proc/{process_id}").exists()):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


SCRATCH = "bertender-scratch-"
"""Start of the names of `scratch_folder`s."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for temporary files, which is removed at the end.

    The folders that this user's killed processes have left, whose locks nobody holds, go first.
    """
    from filelock import FileLock, Timeout  # not installed where artifacts are only served

    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with suppress(OSError, Timeout):  # removed meanwhile, or in use
            if left.lstat().st_uid == os.getuid() and not left.is_symlink():
                with FileLock(left / "lock", timeout=0):
                    shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{SCRATCH}"))
    with FileLock(folder / "lock"):
        folder = folder.rename(folder.with_name(folder.name[1:]))  # removed by nobody until now
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


CACHE_VARIABLE = "BERTENDER_CACHE"


def cache_directory() -> Path:
    """Return the cache folder, $BERTENDER_CACHE or ~/.cache/bertender; it need not exist yet."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "bertender"


def check_savable(flag: str, out: Path | None, kind: str) -> None:
    """Raise ConfigError if a file cannot be written, before minutes of work instead of after.

    Args:
        flag: option with the file's path, for the message: "--out".
        out: the file, or None.
        kind: kind of file, for the message: "JSON".
    """
    if out is None:
        return
    if out.is_dir():
        raise ConfigError(f"{flag} {out} is a directory; give the name of a {kind} file.")
    if out.exists() and not out.is_file():  # a rename would put a file in its place
        raise ConfigError(
            f"{flag} {out} is a device or a pipe, and a file is written there whole or not at all; "
            f"give the name of a {kind} file."
        )
    check_parent(flag, out)


def check_parent(flag: str, out: Path, inside: str = "") -> None:
    """Raise ConfigError if this user cannot write a file, or a folder with a file `inside`."""
    if nearest := unusable_parent(out / inside):
        raise ConfigError(
            f"{flag} {out} cannot be written: {nearest} is not a folder that this user may write "
            "to. Give another name."
        )


def save_result(result: Record, out: Path) -> None:
    """Write a measurement as JSON at `out`."""
    save_text(result.model_dump_json(indent=1) + "\n", out)


def save_text(text: str, out: Path) -> None:
    """Write a file at `out`."""
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
