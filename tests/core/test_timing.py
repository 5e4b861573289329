"""What a run took: added up turn by turn, and kept beside the card without a trace in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact, Stopwatch, Timing, read_timing, write_timing
from bertender.core.card import TIMING_NAME
from bertender.training.config import TrainingConfig
from bertender.training.loop import train
from tests.training.runs import classification

TIMING = Timing(wall_s=8.0, training_s=5.0, samples=100, teacher_s=2.0)


def test_a_stopwatch_adds_up_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 13.0, 20.0, 24.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Stopwatch()
    with clock.running():
        pass
    with pytest.raises(KeyboardInterrupt), clock.running():
        raise KeyboardInterrupt
    assert clock.seconds == 7.5


def test_rates_follow_from_seconds() -> None:
    assert (TIMING.samples_per_s, TIMING.teacher_share) == (20.0, 0.25)
    assert TIMING.summary() == {
        **TIMING.model_dump(),
        "samples_per_s": 20.0,
        "teacher_share": 0.25,
    }
    nothing = Timing(wall_s=0.0, training_s=0.0, samples=0, teacher_s=0.0)
    assert (nothing.samples_per_s, nothing.teacher_share) == (0.0, 0.0)


def test_a_timing_changes_no_artifact(teacher: Artifact, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in teacher.path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert read_timing(Artifact.load(copy)) is None
    write_timing(TIMING, copy)
    timed = Artifact.load(copy)
    assert (timed.digest, timed.card) == (teacher.digest, teacher.card)
    assert read_timing(timed) == TIMING
    (copy / TIMING_NAME).write_text('{"wall_s": ')
    assert read_timing(timed) is None


def test_training_counts_its_samples_and_leaves_scoring_out(tmp_path: Path) -> None:
    start = classification()
    scoring = Stopwatch()

    def score(model: object) -> dict[str, float]:
        with scoring.running():
            time.sleep(0.2)
        return {}

    config = TrainingConfig(epochs=2, batch_size=8, precision="fp32")
    with (whole := Stopwatch()).running():
        report = train(
            start.model, start.examples, start.objective, config, tmp_path, at_epoch_end=score
        )
    assert report.samples == 2 * len(start.examples)
    assert 0 < report.seconds < whole.seconds - scoring.seconds
