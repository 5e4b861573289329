"""Killed runs: resumed from the last whole checkpoint, they reach the very same weights."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from bertender.training.checkpoint import last_checkpoint
from bertender.training.loop import train
from tests.listening import listed_steps
from tests.training.runs import CONFIG, STARTS, Death, run

pytestmark = pytest.mark.slow

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.training.runs"])

STEPS = 24
"""Of an uninterrupted run: 96 examples in batches of 8, twice."""


def run_elsewhere(name: str, out: Path, death: Death | None = None) -> int | None:
    """Do a run in a process of its own; return its exit code, negative for a signal."""
    process = PROCESSES.Process(target=run, args=(name, out, death))
    process.start()
    process.join(120)
    return process.exitcode


def steps_of(out: Path) -> list[int]:
    return [int(step) for step in (out / "steps.txt").read_text().split()]


@pytest.fixture(scope="module", params=STARTS)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a run that nobody has killed; its folder's parent is named after the run."""
    out = tmp_path_factory.mktemp("whole") / request.param
    assert run_elsewhere(request.param, out) == 0
    assert steps_of(out) == list(range(STEPS))
    return out


@pytest.mark.parametrize(
    ("death", "resumed_at"),
    [
        (Death("step", 2), 0),
        (Death("step", 14), 12),
        (Death("checkpoint", 8), 4),
        (Death("checkpoint", STEPS), 20),
    ],
    ids=lambda value: f"{value.moment}-{value.step}" if isinstance(value, Death) else str(value),
)
def test_killed_and_resumed(
    uninterrupted: Path, tmp_path: Path, death: Death, resumed_at: int
) -> None:
    out, name = tmp_path / "model", uninterrupted.name
    assert run_elsewhere(name, out, death) == -signal.SIGKILL
    assert not out.exists() and len(list(tmp_path.glob(".model.work"))) == 1
    assert run_elsewhere(name, out) == 0
    assert steps_of(out) == list(range(resumed_at, STEPS))
    for file in ("model.safetensors", "losses.txt"):
        assert (out / file).read_bytes() == (uninterrupted / file).read_bytes()
    assert list(tmp_path.iterdir()) == [out], "the work directory goes when the run is done"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The work folder of a run that has ended, with checkpoints of steps 20 and 24."""
    start = STARTS["classification"]()
    train(start.model, start.examples, start.objective, CONFIG, tmp_path)
    return tmp_path


def test_a_checkpoint_without_its_marker_does_not_count(work: Path) -> None:
    (work / "checkpoint-24" / "complete").unlink()
    assert last_checkpoint(work) == work / "checkpoint-20"
    assert [path.name for path in work.iterdir()] == ["checkpoint-20"]


HARM: dict[str, Callable[[Path], object]] = {
    "weights are empty": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "optimizer is cut": lambda folder: os.truncate(folder / "optimizer.safetensors", 100),
    "zeros in place of weights": lambda folder: (folder / "model.safetensors").write_bytes(
        bytes((folder / "model.safetensors").stat().st_size)
    ),
    "no state": lambda folder: (folder / "trainer_state.json").unlink(),
    "random state is no JSON": lambda folder: (folder / "random-0.json").write_text("{"),
    "marker is empty": lambda folder: (folder / "complete").write_text(""),
    "marker is a list": lambda folder: (folder / "complete").write_text("[1]"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_checkpoint_is_passed_over(
    harm: str, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    HARM[harm](work / "checkpoint-24")
    assert last_checkpoint(work) == work / "checkpoint-20"
    assert f"checkpoint {work / 'checkpoint-24'} is damaged" in caplog.text
    HARM[harm](work / "checkpoint-20")
    assert last_checkpoint(work) is None and not any(work.iterdir())


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(work: Path) -> None:
    stored = load_file(work / "checkpoint-24" / "model.safetensors")
    whole = {name: tensor.clone() for name, tensor in stored.items()}  # it is mapped from the file
    (work / "checkpoint-24" / "model.safetensors").write_bytes(b"")
    again = STARTS["classification"]()
    with listed_steps() as steps:
        train(again.model, again.examples, again.objective, CONFIG, work)
    assert len(steps) == STEPS - 20
    weights = again.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.items())


def test_no_checkpoint(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "absent") is None


def test_checkpoints_hold_data_only(tmp_path: Path) -> None:
    start = STARTS["classification"]()
    train(start.model, start.examples, start.objective, CONFIG, tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["checkpoint-20", f"checkpoint-{STEPS}"]
    files = [file for file in (tmp_path / kept[-1]).iterdir() if file.name != "complete"]
    assert {"model.safetensors", "optimizer.safetensors", "trainer_state.json"} <= {
        file.name for file in files
    }
    readers = {".json": read_json, ".safetensors": read_safetensors}
    for file in files:
        readers[file.suffix](file)


def test_a_finished_run_resumes_to_nothing_left(tmp_path: Path) -> None:
    start = STARTS["classification"]()
    first = train(start.model, start.examples, start.objective, CONFIG, tmp_path)
    again = STARTS["classification"]()
    second = train(again.model, again.examples, again.objective, CONFIG, tmp_path)
    assert second == first
    weights = zip(start.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in weights)


def read_json(file: Path) -> None:
    json.loads(file.read_text(encoding="utf-8"))


def read_safetensors(file: Path) -> None:
    with safe_open(file, "pt") as tensors:
        assert tensors.keys() or file.stem != "model"
