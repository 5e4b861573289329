"""Python environments of rivals whose packages conflict with ours, made once and reused."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bertender.core.build_once import build_once
from bertender.core.errors import RuntimeMissingError

__all__ = ["python_of"]


def python_of(requirements: Sequence[str], folder: Path, unwanted: Sequence[str] = ()) -> str:
    """Return the interpreter that has some requirements installed, now or before.

    Args:
        requirements: as pip takes them; without any it is this interpreter.
        folder: where environments stay.
        unwanted: packages that are removed again.

    Raises:
        RuntimeMissingError: pip cannot install or remove them; the message has its reason.
    """
    if not requirements:
        return sys.executable
    identity = [platform.python_version(), *requirements, *(f"-{name}" for name in unwanted)]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    place = (folder / digest[:12]).absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    build_once([place], identity, lambda: _make(place, requirements, unwanted), _installed)
    return str(_python(place))


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _make(place: Path, requirements: Sequence[str], unwanted: Sequence[str]) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(place)])
    pip = [str(_python(place)), "-m", "pip"]
    _run([*pip, "install", "--quiet", *requirements])
    if unwanted:
        _run([*pip, "uninstall", "--quiet", "--yes", *unwanted])


def _run(words: Sequence[str]) -> None:
    # packages of this process would count as installed there
    variables = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, env=variables)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"status {done.returncode}"
        raise RuntimeMissingError(f"its environment cannot be made: {reason}")


def _installed(place: Path) -> str:
    """Return the names and versions of what is installed in an environment."""
    return json.dumps(sorted(path.name for path in place.glob("lib/*/site-packages/*.dist-info")))
