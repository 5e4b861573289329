"""Trains a system for a given processor time: probes on few texts say how many it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.budget import Probe, amount_in
from benchmarks.compression.systems import ENCODER, SYSTEMS, TEACHER, System
from benchmarks.making import made_once, seconds_of, timed
from bertender.core.artifact import Artifact
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.tasks.loading import sample
from bertender.tasks.task import Split, Task
from distill.distillation.distiller import DistillConfig, distill
from distill.distillation.unlabelled import with_unlabelled
from distill.methods import METHODS
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from distill.teachers.encoders import find_encoder
from export.onnx_export import ExportConfig, write_onnx
from quantize.quantizer import QuantizeConfig, quantize

__all__ = ["Extent", "Sources", "Trainer", "config_of", "extent_of"]

FIRST_TEXTS = 100
"""Labelled texts of the first probe, in one epoch."""
SCORED = 100
"""Texts that a training scores itself on; all of them score the result afterwards."""
MOST_TEXTS, MOST_EPOCHS = 300_000, 100


def _quantized(teacher: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
    def write(trained: Artifact, folder: Path) -> None:
        write_onnx(trained, task, ExportConfig(), folder)

    return quantize(teacher, task, config, out, write_onnx=write)


@dataclass(frozen=True)
class Stage:
    """Settings and function of a stage."""

    config: type[Config]
    make: Callable[[Artifact, Task, Any, Path], Artifact]


STAGES: Mapping[str, Stage] = {
    "distill": Stage(DistillConfig, distill),
    "prune": Stage(PruneConfig, prune),
    "quantize": Stage(QuantizeConfig, _quantized),
}


@dataclass(frozen=True)
class Sources:
    """Models, texts and settings that systems learn from and by."""

    teacher: Path
    shared: Mapping[str, Any]
    """Settings of all systems."""
    encoder: str | None = None
    """Replaces ENCODER; None where no system needs it."""
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
    if sources.unlabelled is not None and system.amount == "unlabelled_texts" and amount:
        amounts = {"epochs": 1, "unlabelled": sources.unlabelled, "max_unlabelled": amount}
    of_method = _of_method(own, sources.shared) if "method" in own else {}
    return config.parse({**sources.shared, **own, **of_method, **amounts, "seed": seed})


@dataclass(frozen=True)
class Extent:
    """How much a system learns from."""

    labelled_texts: int
    """The first of the task's."""
    amount: int
    """Texts without labels, or epochs, by the system."""

    def texts(self, system: System) -> int:
        """Return how many texts that is, each counted as often as it is seen."""
        if system.amount == "epochs":
            return self.labelled_texts * self.amount
        return self.labelled_texts + self.amount


def extent_of(system: System, texts: int, labelled: int) -> Extent:
    """Return how a system learns from `texts`, each counted as often as it is seen.

    Args:
        system: a row of SYSTEMS.
        texts: their number; fewer than `labelled` are the first of those, in one epoch.
        labelled: texts of the task.
    """
    if system.amount == "epochs":
        return Extent(min(texts, labelled), max(round(texts / labelled), 1))
    return Extent(min(texts, labelled), max(texts - labelled, 0))


def _of_method(own: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the highest of the shared rate, the method's and the row's; an epoch a phase."""
    method = METHODS[own["method"]]
    rates = (each.get("learning_rate", 0.0) for each in (shared, method.settings, own))
    return {"learning_rate": max(rates), **({"earlier_epochs": 1} if method.has_phases else {})}


@dataclass(frozen=True)
class Trainer:
    """Trains systems from a teacher, each for the same time."""

    teacher: Artifact
    task: Task
    """That of the teacher."""
    budget_s: float
    """Processor time of a training."""
    sources: Sources
    work: Path
    """Folder of everything that is trained."""

    def check(self, names: Sequence[str]) -> None:
        """Check the settings of systems before anything is trained.

        Raises:
            ConfigError: they conflict, or there are no texts without labels.
            ModelError, HubUnreachableError: the encoder of `--student` cannot be had.
        """
        for name in names:
            config_of(SYSTEMS[name], 1, 0, self.sources).check_rules()
        rows = [SYSTEMS[name] for name in names]
        if self.sources.encoder is not None and any(row.of_encoder for row in rows):
            find_encoder(self.sources.encoder, setting="student")
        if any(row.amount == "unlabelled_texts" for row in rows) and not self._unlabelled:
            raise ConfigError(
                f"{self.task.name} comes without unlabelled texts. Give a file: --unlabelled FILE."
            )

    def without_folders(self, error: Exception | str) -> str:
        """Return a message without the folders of this machine."""
        folders = (self.work, self.teacher.path.parent)
        reason = str(error)
        for place in (each for folder in folders for each in (folder.resolve(), folder)):
            reason = reason.replace(f"{place}/", "")
        return reason

    def trained(self, name: str, seed: int) -> Artifact:
        """Return a system's model of a seed, trained now or before.

        Raises:
            ModelError, AccuracyError, GateError, ParityError: it cannot be made from this teacher.
        """
        return self._made(SYSTEMS[name], self._texts(name), seed, self.work / f"{name}-{seed}")

    def extent(self, name: str) -> Extent:
        """Return how much a system's time holds, measured now or before."""
        return extent_of(SYSTEMS[name], self._texts(name), len(self.shortened.train))

    def _texts(self, name: str) -> int:
        """Return how many texts a system learns from in its time, measured now or before."""
        system, labelled = SYSTEMS[name], len(self.shortened.train)

        def trained(texts: int) -> Probe:
            made = self._made(system, texts, 0, self.work / "probes" / f"{name}-{texts}")
            seen = extent_of(system, texts, labelled).texts(system)
            return Probe(amount=seen, processor_s=seconds_of(made))

        settings = config_of(system, 1, 0, self.sources).model_dump_json()
        data = f"{self.shortened.fingerprint()} {self._unlabelled} texts"
        epochs = system.amount == "epochs"
        return amount_in(
            system.share * self.budget_s,
            self.work / f"{name}.amount.json",
            f"texts with {settings} {self.teacher.digest} {data}",
            trained,
            FIRST_TEXTS,
            labelled * MOST_EPOCHS if epochs else labelled + self._unlabelled,
        ).amount

    def _made(self, system: System, texts: int, seed: int, out: Path) -> Artifact:
        extent = extent_of(system, texts, len(self.shortened.train))
        task = replace(self.shortened, train=self._first(extent.labelled_texts))
        config = config_of(system, extent.amount, seed, self.sources)
        make = partial(STAGES[system.stage].make, self.teacher, task)
        return made_once(out, config, task, self.teacher, timed(make))

    def _first(self, count: int) -> Split:
        """Return the first training texts, in an order that was drawn.

        Those of a task that has only a part of its training file are in such an order already.
        """
        train = self.shortened.train
        if self.teacher.card.task.source.get("max_train") == len(train):
            return train.first(count)
        return sample(train, count, self.task.problem)

    @cached_property
    def shortened(self) -> Task:
        """The task with few texts to score, which would take a large part of the time.

        The others are reserved, so that nothing learns from them.
        """
        scored = (self.task.dev, self.task.selection)
        dev, selection = (each.first(SCORED) for each in scored)
        left = (text for each in scored for text in each.after(SCORED).examples)
        return replace(
            self.task, dev=dev, selection=selection, reserved=(*self.task.reserved, *left)
        )

    @cached_property
    def _unlabelled(self) -> int:
        """How many texts without labels there are to learn from."""
        settings: dict[str, Any] = {"unlabelled": self.sources.unlabelled}
        if self.sources.unlabelled is None:
            settings = {"unlabelled_texts": MOST_TEXTS}
        extended = with_unlabelled(self.shortened, DistillConfig.parse(settings)).task
        return len(extended.train) - len(self.shortened.train)
