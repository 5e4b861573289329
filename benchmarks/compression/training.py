"""Trains a system for a given processor time: probes say how many texts or epochs it holds."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.budget import Amount, amount_in
from benchmarks.compression.systems import ENCODER, SYSTEMS, TEACHER, System
from benchmarks.making import made_once, note_seconds, seconds_of
from bertender.core.artifact import Artifact
from bertender.core.cache_folder import CACHE_VARIABLE
from bertender.core.config import Config
from bertender.tasks.task import Task
from distill.distillation.distiller import DistillConfig, distill
from distill.methods import METHODS
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from export.onnx_export import ExportConfig, write_onnx
from quantize.quantizer import QuantizeConfig, quantize

__all__ = ["Sources", "Trainer", "config_of"]

FIRST: Mapping[str, int] = {"unlabelled_texts": 200, "epochs": 1}
"""Amount of the first probe."""
SCORED = 100
"""Texts that a training scores itself on; all of them score the result afterwards."""
MOST: Mapping[str, int] = {"unlabelled_texts": 300_000, "epochs": 100}


def _quantized(teacher: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
    def write(trained: Artifact, folder: Path) -> None:
        write_onnx(trained, task, ExportConfig(), folder)

    return quantize(teacher, task, config, out, write_onnx=write)


@dataclass(frozen=True)
class Stage:
    """What makes a system of a stage."""

    config: type[Config]
    make: Callable[[Artifact, Task, Any, Path], Artifact]


STAGES: Mapping[str, Stage] = {
    "distill": Stage(DistillConfig, distill),
    "prune": Stage(PruneConfig, prune),
    "quantize": Stage(QuantizeConfig, _quantized),
}


@dataclass(frozen=True)
class Sources:
    """What systems learn from."""

    teacher: Path
    shared: Mapping[str, Any]
    """Settings of all systems."""
    encoder: str | None = None
    """What stands for ENCODER; None where no system may need it."""
    unlabelled: Path | None = None
    """A file of texts without labels; None: those that come with the task."""


def config_of(system: System, amount: int, seed: int, sources: Sources) -> Config:
    """Return the settings of a system that trains on so much.

    Raises:
        ConfigError: its stage does not allow them.
    """
    config = STAGES[system.stage].config
    names = {ENCODER: sources.encoder, TEACHER: sources.teacher}
    own: dict[str, Any] = {
        name: names.get(value, value) if isinstance(value, str) else value
        for name, value in system.settings.items()
    }
    amounts: dict[str, Any] = {"epochs": 1, system.amount: amount}
    if sources.unlabelled is not None and system.amount == "unlabelled_texts":
        amounts = {"epochs": 1, "unlabelled": sources.unlabelled, "max_unlabelled": amount}
    of_method = _of_method(own["method"], sources.shared) if "method" in own else {}
    return config.parse({**sources.shared, **of_method, **own, **amounts, "seed": seed})


def _of_method(name: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a method: its own rate where that is higher, an epoch of each phase.

    Methods with a higher rate start from noise, and would hardly move at the rate of the others.
    """
    method = METHODS[name]
    rate = max(shared["learning_rate"], method.settings.get("learning_rate", 0.0))
    return {"learning_rate": rate, **({"earlier_epochs": 1} if method.has_phases else {})}


@dataclass(frozen=True)
class Trainer:
    """Trains systems from a teacher, each for the same time."""

    teacher: Artifact
    task: Task
    """That of the teacher."""
    budget_s: float
    """Processor time of each training."""
    sources: Sources
    work: Path
    """Folder of everything that is trained."""

    def trained(self, name: str, seed: int) -> Artifact:
        """Return a system's model of a seed, trained now or before.

        Raises:
            ConfigError, ModelError, AccuracyError, GateError, ParityError: it cannot be made from
                this teacher.
        """
        amount = self.chosen(name).amount
        return self._made(SYSTEMS[name], amount, seed, self.work / f"{name}-{seed}")

    def chosen(self, name: str) -> Amount:
        """Return how much of a system's training the budget holds, measured now or before."""
        system = SYSTEMS[name]

        def seconds_for(amount: int) -> float:
            out = self.work / "probes" / f"{name}-{amount}"
            return seconds_of(self._made(system, amount, 0, out))

        place = self.work / f"{name}.amount.json"
        first, most = FIRST[system.amount], MOST[system.amount]
        return amount_in(self.budget_s, place, seconds_for, first, most)

    def _made(self, system: System, amount: int, seed: int, out: Path) -> Artifact:
        config = config_of(system, amount, seed, self.sources)
        make = partial(self._timed, STAGES[system.stage])
        return made_once(out, config, self.shortened, self.teacher, make)

    @property
    def shortened(self) -> Task:
        """The task with few texts to score, which would take a large part of the time."""
        dev, selection = (each.first(SCORED) for each in (self.task.dev, self.task.selection))
        return replace(self.task, dev=dev, selection=selection)

    def _timed(self, stage: Stage, config: Config, out: Path) -> Artifact:
        """Make a model whose teacher computes its outputs anew, as part of the time."""
        cache, started = out.with_name(f"{out.name}.cache"), time.process_time()
        with patch.dict(os.environ, {CACHE_VARIABLE: str(cache)}):
            made = stage.make(self.teacher, self.shortened, config, out)
        note_seconds(made, time.process_time() - started)
        shutil.rmtree(cache, ignore_errors=True)
        return made
