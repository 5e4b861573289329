"""Under the real `accelerate launch`, two processes on half batches are one on whole ones."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertender.core.artifact import Artifact
from bertender.core.machine import is_main_process, wait_for_processes
from tests.training.distributed_run import run, student_path

pytestmark = pytest.mark.slow

LOSS_TOLERANCE = 1e-6
WEIGHT_TOLERANCE = 1e-5
"""Sums in another order differ in the last bits of fp32, which Adam may enlarge."""
STUDENT_TOLERANCE = 0.01
"""As a share of what was learned: where next to no gradient comes, its sign is chance, and Adam
takes a whole step for it, so that single weights say nothing."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(out: Path, batch_size: int) -> None:
    """Do the run in two processes that talk over loopback.

    Without GPUs `--multi_gpu` means processes on the CPU; with `--cpu`, accelerate starts one only.
    """
    command = (
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())),
        *("-m", "tests.training.distributed_run", str(out), str(batch_size)),
    )
    root = Path(__file__).parents[2]
    alone = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **alone},
        cwd=root,
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def record(out: Path, rank: int) -> dict[str, Any]:
    return json.loads((out.parent / f"{out.name}-{rank}.json").read_text())


def test_two_processes_equal_one_with_the_doubled_batch(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    whole = run(one, 8)
    launch(two, 4)
    halves = Artifact.load(two)
    first, second = record(two, 0), record(two, 1)
    together = np.mean([first["losses"], second["losses"]], axis=0)
    np.testing.assert_allclose(together, record(one, 0)["losses"], atol=LOSS_TOLERANCE)
    assert first["losses"] != second["losses"], "each process has examples of its own"
    assert (first["writes"], second["writes"]) == ([True], []), "the artifact is written once"
    assert first["digest"] == second["digest"] == halves.digest
    assert (
        halves.card.findings.training.steps == whole.card.findings.training.steps == len(together)
    )
    assert halves.card.findings.training.epochs == whole.card.findings.training.epochs
    left = {"two", "two-0.json", "two-1.json", "student-of-two"}
    assert {path.name for path in tmp_path.glob("*two*")} == left
    assert_same_weights(one, two, WEIGHT_TOLERANCE)
    assert first["student"] == second["student"]
    of_tokens = [each["first_loss_of_student"] for each in (first, second)]
    assert np.mean(of_tokens) == pytest.approx(record(one, 0)["first_loss_of_student"], rel=1e-4)
    learned = distance(one, student_path(one))
    assert distance(student_path(one), student_path(two)) < STUDENT_TOLERANCE * learned


def assert_same_weights(one: Path, two: Path, tolerance: float) -> None:
    expected = load_file(one / "model.safetensors")
    for name, weights in load_file(two / "model.safetensors").items():
        np.testing.assert_allclose(weights, expected[name], atol=tolerance, err_msg=name)


def distance(one: Path, two: Path) -> float:
    """Return how far apart the embeddings and heads of two models are, as a Euclidean norm."""
    first, second = (load_file(path / "model.safetensors") for path in (one, two))
    names = [name for name in second if "layer." not in name]
    return float(np.sqrt(sum(np.square(first[name] - second[name]).sum() for name in names)))


def test_alone_a_process_is_the_main_one() -> None:
    assert is_main_process()
    wait_for_processes()
