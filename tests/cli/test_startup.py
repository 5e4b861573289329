"""Options, settings and paths are answered before the libraries of training and measuring load.

PyTorch alone takes five seconds and 400 MB. Nothing is timed here: what a command has imported
when it answers is what it costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertender.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "onnxruntime", "sklearn", "scipy", "datasets", "pandas"}

ANSWERS = """
import json, sys
from typer.testing import CliRunner
from bertender.cli.main import build_app
answers = []
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(build_app(words[0]), words)
    loaded = sorted(set(json.loads(sys.argv[2])) & sys.modules.keys())
    answers.append({"exit": result.exit_code, "said": result.output, "loaded": loaded})
print(json.dumps(answers))
"""
"""Runs commands in one process, and says after each what that process has loaded."""

NOWHERE = "./nowhere"
OUT = ("--out", "out")
PATHS: dict[str, list[tuple[str, ...]]] = {
    "run": [(f"{NOWHERE}.yaml",)],
    "sweep": [(f"{NOWHERE}.yaml", "--grid", "a=1")],
    "pretrain": [("--corpus", f"{NOWHERE}.txt", *OUT), ("--stack-from", NOWHERE, *OUT)],
    "distill-general": [("--teacher", NOWHERE, *OUT), ("--corpus", f"{NOWHERE}.txt", *OUT)],
    "baseline": [("--train", f"{NOWHERE}.csv", "--dev", f"{NOWHERE}.csv", *OUT)],
    "finetune": [("--task", "docs", "--teacher", NOWHERE, *OUT)],
    "distill": [
        ("--teacher", NOWHERE, *OUT),
        ("--teacher", NOWHERE, "--student", NOWHERE, *OUT),
        ("--teacher", NOWHERE, "--unlabelled", f"{NOWHERE}.txt", *OUT),
    ],
    "prune": [(NOWHERE, "--heads", "0.5", *OUT)],
    "export": [(NOWHERE, *OUT)],
    "quantize": [(NOWHERE, *OUT)],
    "bundle": [(NOWHERE, "--to", "browser", *OUT)],
    "calibrate": [(NOWHERE, *OUT)],
    "import": [(NOWHERE, *OUT)],
    "compress": [("--teacher", NOWHERE, *OUT)],
    "verify": [(NOWHERE, NOWHERE)],
    "compare": [(NOWHERE,), ("--saved", f"{NOWHERE}.json")],
    "report": [(NOWHERE, "--html", "page.html"), (f"{NOWHERE}.json", "--html", "page.html")],
    "analyse": [(NOWHERE, *OUT)],
    "diff": [(NOWHERE, NOWHERE)],
    "drift": [(NOWHERE, f"{NOWHERE}.csv")],
    "serve": [(NOWHERE,)],
    "score": [(NOWHERE, f"{NOWHERE}.csv", *OUT)],
    "deploy": [(NOWHERE, "--to", "http://localhost:9")],
    "tune": [(NOWHERE, "--task", "docs")],
    "show": [(NOWHERE,)],
    "card": [(NOWHERE,)],
    "push": [(NOWHERE, "anna/toy")],
}
"""Paths that are not there, by the commands that take some."""

TAKE_NO_PATH = {
    *("classify", "loadtest", "api-key", "install-server"),
    *("tasks", "methods", "schemes", "recipes", "doctor"),
}

SETTINGS: dict[str, list[tuple[str, ...]]] = {
    "pretrain": [("--layers", "0", *OUT), ("--objective", "mml", *OUT), ("--heads", "3", *OUT)],
    "distill-general": [("--layers", "0", *OUT), ("--method", "tinybrt", *OUT)],
    "baseline": [("--longest-ngram", "0", *OUT)],
    "finetune": [("--epochs", "0", *OUT), ("--more-tasks", "sts2", *OUT), ("--task", "sts2", *OUT)],
    "distill": [
        ("--teacher", NOWHERE, "--layers", "0", *OUT),
        ("--teacher", NOWHERE, "--method", "tinybrt", *OUT),
        ("--teacher", NOWHERE, "--weights", "sift=1", *OUT),
        ("--teacher", NOWHERE, "--method", "hard", "--unlabelled-texts", "9", *OUT),
        ("--teacher", NOWHERE, "--augmentation", "tinybrt", *OUT),
    ],
    "prune": [(NOWHERE, *OUT), (NOWHERE, "--heads", "2", *OUT)],
    "export": [(NOWHERE, "--opset", "3", *OUT), (NOWHERE, "--overflow", "allow", *OUT)],
    "quantize": [(NOWHERE, "--scheme", "dynamik", *OUT), (NOWHERE, "--weight-bits", "9", *OUT)],
    "bundle": [(NOWHERE, *OUT), (NOWHERE, "--to", "browsr", *OUT)],
    "compress": [("--teacher", NOWHERE, "--schemes", "dynamik", *OUT)],
    "compare": [(NOWHERE, "--runtime", "onnxruntim"), (NOWHERE, "--rounds", "0")],
    "report": [
        (NOWHERE, "--html", "page.html", "--max-ms", "0"),
        (NOWHERE, "--html", "page.html", "--rounds", "0"),
    ],
    "analyse": [(NOWHERE, "--only", "masks", *OUT), (NOWHERE, "--texts", "0", *OUT)],
    "serve": [(NOWHERE, "--http-port", "70000")],
    "tune": [(NOWHERE, "--task", "docs", "--rounds", "0")],
    "score": [(NOWHERE, f"{NOWHERE}.csv", "--shard", "5/4", *OUT)],
    "loadtest": [("http://localhost:9", "--task", "docs", "--rate", "-1")],
}
"""Values, names and conflicts that settings refuse, by commands that have some."""


def answers(lines: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", ANSWERS, json.dumps(lines), json.dumps(sorted(HEAVY))]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=folder, env=offline
    )
    return list(json.loads(result.stdout.splitlines()[-1]))


def check(lines: list[list[str]], folder: Path, *, status: int) -> None:
    """Check what each line ends with, and that none of them loads a heavy library or an error names
    a class in place of a setting."""
    for words, answer in zip(lines, answers(lines, folder), strict=True):
        assert answer["exit"] == status, (words, answer["said"])
        assert not answer["loaded"], (words, answer["said"])
        assert "Config: " not in answer["said"]


def test_help_loads_no_heavy_library(tmp_path: Path) -> None:
    check([[name, "--help"] for name in COMMANDS], tmp_path, status=0)


CONFIGS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("bertender", "distill", "export", "quantize", "serve")
    for path in (ROOT / package).rglob("config.py")
)


def test_settings_load_no_heavy_library() -> None:
    lines = [f"import sys, {', '.join(CONFIGS)}", f"print(*({HEAVY!r} & sys.modules.keys()))"]
    command = [sys.executable, "-c", "\n".join(lines)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert len(CONFIGS) >= 10 and not result.stdout.split()


def test_every_command_that_takes_a_path_is_tried() -> None:
    assert set(PATHS) | TAKE_NO_PATH == set(COMMANDS)


@pytest.mark.parametrize("mistakes", [PATHS, SETTINGS], ids=["paths", "settings"])
def test_a_mistake_is_answered_before_heavy_libraries_load(
    mistakes: dict[str, list[tuple[str, ...]]], tmp_path: Path
) -> None:
    lines = [[name, *words] for name, tried in mistakes.items() for words in tried]
    check(lines, tmp_path, status=2)
    assert list(tmp_path.iterdir()) == []
