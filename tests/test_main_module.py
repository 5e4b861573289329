"""`python -m bertender` in a folder of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[1]
NAMES = ("serve", "export", "distill", "quantize")


@pytest.mark.parametrize("words", [("--help",), ("schemes", "--json"), ("classify", "--help")])
def test_a_users_files_are_not_taken_for_packages(words: tuple[str, ...], tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the user\\'s own file was run')\n")
    done = subprocess.run(
        [sys.executable, "-m", "bertender", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
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
