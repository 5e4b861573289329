"""`python -m bertender` in a folder of the user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1]
NAMES = ("serve", "export", "distill", "quantize")


@pytest.mark.parametrize("inside", [False, True], ids=["elsewhere", "in a folder of the project"])
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--help",), marks=pytest.mark.slow),
        ("schemes", "--json"),
        pytest.param(("classify", "--help"), marks=pytest.mark.slow),
    ],
)
def test_a_users_files_are_not_taken_for_packages(
    words: tuple[str, ...], inside: bool, tmp_path: Path
) -> None:
    """Nor where the packages lie somewhere below the user's folder, as in its own .venv."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the user\\'s own file was run')\n")
    packages = PACKAGES
    if inside:
        packages = tmp_path / "venv" / "lib"
        packages.mkdir(parents=True)
        for name in ("bertender", *NAMES):
            shutil.copytree(
                PACKAGES / name, packages / name, ignore=shutil.ignore_patterns("__pycache__")
            )
    done = subprocess.run(
        [sys.executable, "-m", "bertender", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_clone_runs_from_its_own_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bertender", "recipes"],
        cwd=PACKAGES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "quickstart" in done.stdout, done.stderr
