"""Trains a system for a given processor time: probes on few texts say how many it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.common.budget import Probe, amount_in
from benchmarks.common.making import made_once, seconds_of, timed
from benchmarks.compression.systems import ENCODER, SYSTEMS, TEACHER
from bertender.core.artifact import Artifact
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.models.own_models import open_config
from bertender.tasks.loading import sample
from bertender.tasks.task import Split, Task
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.texts import with_unlabelled
from distill.methods import METHODS
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from distill.teachers.encoders import find_encoder
from distill.trained import artifact_at
from export.config import ExportConfig
from export.exporter import write_onnx
from quantize.quantize_config import QuantizeConfig
from quantize.quantizer import quantize

__all__ = ["Extent", "Sources", "Trainer", "config_of", "extent_of", "pretrained_by"]

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
    encoders: Mapping[str, str] = field(default_factory=dict)
    """System -> what replaces its ENCODER."""
    unlabelled: Path | None = None
    """A file of texts without labels; None: those that come with the task."""


@dataclass(frozen=True)
class Extent:
    """How much a system learns from."""

    labelled_texts: int
    """The first of the task's."""
    epochs: int = 1
    """Over the labelled texts."""
    unlabelled_texts: int = 0

    @property
    def texts(self) -> int:
        """How many texts that is, each counted as often as it is seen."""
        return self.labelled_texts * self.epochs + self.unlabelled_texts


def extent_of(texts: int, labelled: int, *, in_epochs: bool) -> Extent:
    """Return how a system learns from `texts`, each counted as often as it is seen.

    Args:
        texts: their number; fewer than `labelled` are the first of those, in one epoch.
        labelled: texts of the task.
        in_epochs: whether it sees them more often, instead of others without labels.
    """
    if in_epochs:
        return Extent(min(texts, labelled), max(round(texts / labelled), 1))
    return Extent(min(texts, labelled), unlabelled_texts=max(texts - labelled, 0))


def config_of(name: str, extent: Extent, seed: int, sources: Sources) -> Config:
    """Return the settings of a system that learns from so much.

    Raises:
        ConfigError: its stage does not allow them.
    """
    system = SYSTEMS[name]
    names = {ENCODER: sources.encoders.get(name), TEACHER: sources.teacher}
    own: dict[str, Any] = {
        name: names.get(value, value) if isinstance(value, str) else value
        for name, value in system.settings.items()
    }
    of_method = _of_method(own, extent, sources.shared) if "method" in own else {}
    whole = {"vocab_size": "all"} if system.stage == "distill" else {}
    amounts = {"epochs": extent.epochs, **_of_unlabelled(extent.unlabelled_texts, sources)}
    config = STAGES[system.stage].config
    judged = {"seed": seed, "allow_constant": True}  # a system that learned nothing is a row
    return config.parse({**whole, **sources.shared, **own, **of_method, **amounts, **judged})


def _of_unlabelled(texts: int, sources: Sources) -> dict[str, Any]:
    if not texts:
        return {}
    if sources.unlabelled is None:
        return {"unlabelled_texts": texts}
    return {"unlabelled": sources.unlabelled, "max_unlabelled": texts}


def _of_method(own: Mapping[str, Any], extent: Extent, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the highest of the shared rate, the method's and the row's; phases are as long."""
    method = METHODS[own["method"]]
    rates = (each.get("learning_rate", 0.0) for each in (shared, method.settings, own))
    earlier = {"earlier_epochs": extent.epochs} if method.has_phases else {}
    return {"learning_rate": max(rates), **earlier}


def _check_encoder(name: str, encoder: str) -> None:
    """Raise ConfigError for an encoder that is not the one of the system's paper."""
    wanted, method = SYSTEMS[name].encoder_width, SYSTEMS[name].settings["method"]
    place = find_encoder(encoder, setting="students")
    if wanted is None:
        return
    made, width = artifact_at(place), open_config(place).hidden_size
    by = made and made.card.config.get("method")
    if (by, width) != (method, wanted):
        raise ConfigError(
            f"--students {name}={encoder}: it is {width} wide, of method {by}. This system starts "
            f"from one of `bertender distill-general --method {method} --hidden-size {wanted}`."
        )


def pretrained_by(encoder: str) -> str:
    """Return an encoder's name, and of one that was made here by what.

    Raises:
        ModelError, HubUnreachableError: it cannot be had.
    """
    place = find_encoder(encoder, setting="students")
    made = artifact_at(place)
    if made is None:
        return Path(encoder).absolute().name  # packaged ones lie in folders of another name
    card, training = made.card, made.card.findings.training
    words = [card.stage, card.config.get("method"), "on", card.task.name]
    if training is not None and training.steps is not None:
        words.append(f"in {training.steps} steps of batches of {card.config['batch_size']}")
    return f"{made.name} ({' '.join(filter(None, words))})"


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
            ConfigError: they conflict, or an encoder of `--students` is not the system's.
            ModelError, HubUnreachableError: one cannot be had.
        """
        for name in names:
            self._settings(name).check_rules()
        for name in sorted(self.sources.encoders.keys() & {*names}):
            _check_encoder(name, self.sources.encoders[name])

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
            ConfigError: its time is too short for it.
        """
        return self._made(name, self.extent(name), seed, self.work / f"{name}-{seed}")

    def extent(self, name: str) -> Extent:
        """Return how much a system's time holds, measured now or before.

        Raises:
            ConfigError: not even the first probe.
        """
        system, labelled = SYSTEMS[name], len(self.shortened.train)
        most = labelled * MOST_EPOCHS if self._in_epochs(name) else labelled + self.unlabelled_texts

        def trained(texts: int) -> Probe:
            extent = self._extent_of(name, texts)
            made = self._made(name, extent, 0, self.work / "probes" / f"{name}-{texts}")
            probe = Probe(amount=extent.texts, processor_s=seconds_of(made))
            if texts <= FIRST_TEXTS:
                self._check_fits(name, probe)
            return probe

        settings = self._settings(name).model_dump_json()
        data = f"{self.shortened.fingerprint()} {self.unlabelled_texts} texts"
        known = amount_in(
            system.share * self.budget_s,
            self.work / f"{name}.amount.json",
            f"texts with {settings} {self.teacher.digest} {data}",
            trained,
            FIRST_TEXTS,
            most,
        )
        self._check_fits(name, known.probes[0])
        return self._extent_of(name, known.amount)

    def _check_fits(self, name: str, first: Probe) -> None:
        """Raise ConfigError where what a system costs before it learns is above its time."""
        share = SYSTEMS[name].share
        if first.processor_s > share * self.budget_s:
            raise ConfigError(
                f"{first.amount} texts alone take {first.processor_s:.0f} s of processor time, and "
                f"it has {share * self.budget_s:.0f} s. Give more --minutes."
            )

    def _settings(self, name: str) -> Config:
        """Return a system's settings of the shortest training."""
        extent = Extent(0) if self._in_epochs(name) else Extent(0, unlabelled_texts=1)
        return config_of(name, extent, 0, self.sources)

    def _in_epochs(self, name: str) -> bool:
        return SYSTEMS[name].in_epochs or not self.unlabelled_texts

    def _extent_of(self, name: str, texts: int) -> Extent:
        return extent_of(texts, len(self.shortened.train), in_epochs=self._in_epochs(name))

    def _made(self, name: str, extent: Extent, seed: int, out: Path) -> Artifact:
        task = replace(self.shortened, train=self._first(extent.labelled_texts))
        config = config_of(name, extent, seed, self.sources)
        make = partial(STAGES[SYSTEMS[name].stage].make, self.teacher, task)
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
    def unlabelled_texts(self) -> int:
        """How many texts without labels there are to learn from; 0 where the task has none."""
        settings: dict[str, Any] = {"unlabelled": self.sources.unlabelled}
        if self.sources.unlabelled is None:
            settings = {"unlabelled_texts": MOST_TEXTS}
        extended = with_unlabelled(self.shortened, DistillConfig.parse(settings)).task
        return len(extended.train) - len(self.shortened.train)
