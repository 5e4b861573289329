"""Machines unlike this one, as far as Triton cares."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from serve.server import installation, wheels


def unlike(
    patch: pytest.MonkeyPatch,
    prefix: Path,
    *,
    machine: str = "x86_64",
    python: str = "3.11",
    glibc: str = "glibc 2.36",
    system: str = "linux",
) -> None:
    """Let this process take itself for another machine, with an empty environment at `prefix`."""
    patch.setattr(sys, "prefix", str(prefix))
    patch.setattr(sys, "platform", system)
    patch.setattr(platform, "machine", lambda: machine)
    patch.setattr(os, "confstr", lambda name: glibc)
    for module in (installation, wheels):
        patch.setattr(module, "PYTHON", python)
