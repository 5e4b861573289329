"""A folder that is a small disk of its own to some processes: the kernel itself refuses more."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "small_disk"]

MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && exec cat'


@dataclass(frozen=True)
class SmallDisk:
    """An empty file system that hides what else is at its folder, for those who `run` alone."""

    folder: Path
    process_id: int
    """Of the process whose namespaces have it."""

    @property
    def content(self) -> Path:
        """Where this process finds it."""
        return Path(f"/proc/{self.process_id}/root", *self.folder.parts[1:])

    def run(self, *words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; its output is text."""
        enter = ("nsenter", f"--target={self.process_id}", "--user", "--mount")
        command = [*enter, "--preserve-credentials", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount one of so many bytes, in whole pages, at a folder that exists.

    A test is skipped where this user may have no namespaces, as in most containers.
    """
    mount = ["sh", "-c", MOUNT, "small-disk", str(size_bytes), str(folder)]
    try:
        holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--mount", *mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename} here")
    with holder:
        assert holder.stdin and holder.stdout and holder.stderr
        if not holder.stdout.readline():
            pytest.skip(f"no namespaces for this user: {holder.stderr.read().strip()}")
        try:
            yield SmallDisk(folder, holder.pid)
        finally:
            holder.stdin.close()  # at which `cat` ends, and the disk with it
            holder.wait(10)
