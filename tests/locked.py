"""A process as in a hardened container: no root, nothing to write but /tmp and /dev/shm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["NOBODY", "locked_command", "skip_unless_lockable"]

NOBODY = "65534"
SCRIPT = """
mount --make-rprivate / &&
mount -t tmpfs -o mode=1777 tmpfs /tmp &&
mount -o remount,bind,ro / &&
exec unshare --user --map-user=$NOBODY --map-group=$NOBODY "$@"
"""


def locked_command(*words: str | Path) -> list[str]:
    """Return the command that runs `words` so, in namespaces of its own.

    The user who mounts is root in the outer one alone; `words` run as another in the inner one.
    """
    script = SCRIPT.replace("$NOBODY", NOBODY)
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "locked", *map(str, words)]


def skip_unless_lockable(python: Path, env: Mapping[str, str]) -> None:
    """Skip where this user may not have such namespaces, as in most containers."""
    probe = locked_command(python, "-c", "import os, numpy; print(os.getuid())")
    try:
        done = subprocess.run(probe, env=dict(env), capture_output=True, text=True, timeout=20)
    except FileNotFoundError as error:
        pytest.skip(f"no {error.filename} here")
    if done.stdout.strip() != NOBODY:
        pytest.skip(f"no namespaces for user {os.geteuid()}: {done.stderr.strip()}")
