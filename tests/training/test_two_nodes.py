"""`torchrun` of two nodes, on loopback: the command learns as one process of the doubled batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from tests.front import write_toy_files
from tests.training.test_distributed import LOSS_TOLERANCE, free_port

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "tests.training.distributed_command")
LOSSES = {"soft", "hard", "patience"}


def torchrun(node: int, port: int) -> tuple[str, ...]:
    """The line of the page on a node, with addresses of this machine."""
    return (
        *("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)),
    )


@pytest.mark.slow
def test_two_nodes_learn_as_one_process_of_the_doubled_batch(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    files = write_toy_files(tmp_path, task)
    variables = {
        **os.environ,
        **{"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    }

    def words(name: str, batch_size: int) -> list[str]:
        fixed = "--method pkd --layers 2 --vocab-size all --epochs 1 --precision fp32 --no-dropout"
        out = ("--out", tmp_path / name, "--batch-size", batch_size, "--learning-rate", "1e-3")
        command = ("distill", "--teacher", teacher.path, *files.flags, *fixed.split(), *out)
        return [*map(str, (tmp_path / f"{name}-losses", *command))]

    subprocess.run(
        [sys.executable, *MODULE, *words("one", 8)],
        env=variables,
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    port = free_port()
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *torchrun(node, port), *MODULE, *words("two", 4)],
                    env=variables,
                    cwd=ROOT,
                )
            )
            for node in range(2)
        ]
        assert [node.wait(timeout=300) for node in nodes] == [0, 0]
    whole, first, second = (
        json.loads((tmp_path / f"{name}-losses-{rank}.json").read_text())
        for name, rank in (("one", 0), ("two", 0), ("two", 1))
    )
    assert len(whole) == len(first) == len(second) > 8
    assert first != second, "each node has examples of its own"
    for name in whole[0]:
        curves = [[step[name] for step in steps] for steps in (whole, first, second)]
        np.testing.assert_allclose(
            np.mean(curves[1:], axis=0), curves[0], atol=LOSS_TOLERANCE, err_msg=name
        )
    assert {*whole[0]} == LOSSES
    one, two = (Artifact.load(tmp_path / name).card.findings.training for name in ("one", "two"))
    assert one is not None and two is not None
    assert (one.steps, one.epochs) == (two.steps, two.epochs)
