"""Trains a system for a given wall time: probes say how many texts or epochs that time holds."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.compression.systems import ENCODER, SYSTEMS, System
from benchmarks.making import made_once
from bertender.core.artifact import Artifact
from bertender.core.cache_folder import CACHE_VARIABLE
from bertender.core.config import Config, Record
from bertender.core.errors import ConfigError
from bertender.core.saving import save_result, save_text
from bertender.tasks.task import Task
from distill.distillation.distiller import DistillConfig, distill
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from export.onnx_export import ExportConfig, write_onnx
from quantize.quantizer import QuantizeConfig, quantize

__all__ = ["Chosen", "Trainer", "wall_seconds"]

FIRST: Mapping[str, int] = {"unlabelled_texts": 200, "epochs": 1}
"""Amount of the first probe; each further one has so many times as much."""
FACTOR = 4
LEAST_SHARE = 0.05
"""Of the budget, by which the last probe must take longer than the first."""
MOST: Mapping[str, int] = {"unlabelled_texts": 300_000, "epochs": 100}


class Chosen(Record):
    """How much of a training the budget holds."""

    amount: int
    probes: tuple[tuple[int, float], ...]
    """Amount and seconds of each."""


def _quantized(teacher: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
    def write(trained: Artifact, folder: Path) -> None:
        write_onnx(trained, task, ExportConfig(), folder)

    return quantize(teacher, task, config, out, write_onnx=write)


@dataclass(frozen=True)
class _Stage:
    """What makes a system of a stage."""

    config: type[Config]
    make: Callable[[Artifact, Task, Any, Path], Artifact]


STAGES: Mapping[str, _Stage] = {
    "distill": _Stage(DistillConfig, distill),
    "prune": _Stage(PruneConfig, prune),
    "quantize": _Stage(QuantizeConfig, _quantized),
}


class Trainer:
    """Trains systems from a teacher, each for the same time.

    Args:
        teacher: a torch artifact.
        task: that of the teacher.
        budget_s: wall time of each training, in seconds.
        shared: settings of all systems, where a method has none of its own.
        encoder: what stands for ENCODER; None where no system may need it.
        work: folder of everything that is trained.
    """

    def __init__(
        self,
        teacher: Artifact,
        task: Task,
        budget_s: float,
        shared: Mapping[str, Any],
        encoder: str | None,
        work: Path,
    ) -> None:
        self.teacher = teacher
        self.task = task
        self.budget_s = budget_s
        self.shared = shared
        self.encoder = encoder
        self.work = work

    def trained(self, name: str, seed: int) -> Artifact:
        """Return a system's model of a seed, trained now or before.

        Raises:
            ConfigError, ModelError, AccuracyError, GateError, ParityError: it cannot be made from
                this teacher.
        """
        amount = self.chosen(name).amount
        return self._made(SYSTEMS[name], amount, seed, self.work / f"{name}-{seed}")

    def chosen(self, name: str) -> Chosen:
        """Return how much of a system's training the budget holds, measured now or before."""
        system = SYSTEMS[name]
        place = self.work / f"{name}.amount.json"
        if place.exists():
            return Chosen.model_validate_json(place.read_text(encoding="utf-8"))
        probes = tuple(self._probes(name, system))
        chosen = Chosen(amount=_amount(probes, self.budget_s, MOST[system.amount]), probes=probes)
        save_result(chosen, place)
        return chosen

    def _probes(self, name: str, system: System) -> Iterator[tuple[int, float]]:
        """Train on more and more, until the difference can be measured or there is no more."""
        amount, first = FIRST[system.amount], None
        while True:
            out = self.work / "probes" / f"{name}-{amount}"
            seconds = wall_seconds(self._made(system, amount, 0, out))
            yield amount, seconds
            first = seconds if first is None else first
            if seconds - first >= LEAST_SHARE * self.budget_s or amount >= MOST[system.amount]:
                return
            amount = min(FACTOR * amount, MOST[system.amount])

    def _made(self, system: System, amount: int, seed: int, out: Path) -> Artifact:
        stage = STAGES[system.stage]
        own = {
            key: self.encoder if each == ENCODER else each for key, each in system.settings.items()
        }
        known = stage.config.model_fields
        shared = {key: each for key, each in self.shared.items() if key in known}
        amounts = {"epochs": 1, system.amount: amount, "seed": seed}
        config = stage.config.parse({**shared, **own, **amounts})
        return made_once(out, config, self.task, self.teacher, partial(self._timed, stage))

    def _timed(self, stage: _Stage, config: Config, out: Path) -> Artifact:
        """Make a model whose teacher computes its outputs anew, as part of the time."""
        cache, started = out.with_name(f"{out.name}.cache"), time.perf_counter()
        with patch.dict(os.environ, {CACHE_VARIABLE: str(cache)}):
            made = stage.make(self.teacher, self.task, config, out)
        save_text(f"{time.perf_counter() - started:.1f}\n", _place_of_seconds(made))
        shutil.rmtree(cache, ignore_errors=True)
        return made


def _amount(probes: tuple[tuple[int, float], ...], budget_s: float, most: int) -> int:
    """Return the amount that takes the budget, on the line through the first and last probe."""
    (first, first_s), (last, last_s) = probes[0], probes[-1]
    if last == first or last_s <= first_s:
        return last
    slope = (last_s - first_s) / (last - first)
    return min(max(round(first + (budget_s - first_s) / slope), 1), most)


def wall_seconds(model: Artifact) -> float:
    """Return the wall time in which a model was made, from the teacher on.

    Raises:
        ConfigError: that was not recorded, since the run was killed.
    """
    try:
        return float(_place_of_seconds(model).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{model.path}: how long it took is not recorded, since the run was killed. Remove "
            "it, and run this again."
        ) from None


def _place_of_seconds(model: Artifact) -> Path:
    return model.path.with_name(f"{model.name}.seconds")
