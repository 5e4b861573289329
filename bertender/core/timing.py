"""Duration of a training run.

Equal runs differ in it. So it lies next to an artifact's card, in a file of its own that is in
neither the card nor the digest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from bertender.core.artifact import Artifact
from bertender.core.atomic import replacing
from bertender.core.card import TIMING_NAME
from bertender.core.config import Record

__all__ = ["TIMING_NAME", "Stopwatch", "Timing", "read_timing", "write_timing"]


class Stopwatch:
    """Adds up how long a kind of work takes, turn by turn."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the block, and wait for its work on a GPU."""
        _wait_for_gpu()
        started = time.perf_counter()
        try:
            yield
        finally:
            _wait_for_gpu()
            self.seconds += time.perf_counter() - started


class Timing(Record):
    """Duration of a run; of an interrupted one, only the time since it was resumed."""

    wall_s: float = Field(description="from the texts to the trained model, scoring included")
    training_s: float = Field(description="steps of training, over all phases")
    samples: int = Field(description="texts in these steps, in each epoch anew")
    teacher_s: float = Field(description="in the teacher, before the training and in its steps")

    @property
    def samples_per_s(self) -> float:
        """Texts of training a second of training."""
        return self.samples / self.training_s if self.training_s else 0.0

    @property
    def teacher_share(self) -> float:
        """The teacher's part of the wall time, 0 to 1."""
        return self.teacher_s / self.wall_s if self.wall_s else 0.0

    def summary(self) -> dict[str, float]:
        """Return the measured seconds and what follows from them, as plain values."""
        rates = {"samples_per_s": self.samples_per_s, "teacher_share": self.teacher_share}
        return {**self.model_dump(mode="json"), **rates}


def write_timing(timing: Timing, artifact: Path) -> None:
    """Put a timing next to the card of the artifact at a path."""
    with replacing(artifact / TIMING_NAME) as temporary:
        temporary.write_text(timing.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_timing(artifact: Artifact) -> Timing | None:
    """Return the timing next to an artifact's card; None where there is none that can be read."""
    try:
        return Timing.model_validate_json((artifact.path / TIMING_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def _wait_for_gpu() -> None:
    import torch  # seconds, which a command that only shows a timing should not take

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
