"""Probes: a few models of a start, hardly trained, whose bytes and time are measured.

They span what candidates differ in: depth, heads, neurons, vocabulary. They are timed in turns,
the teacher with them, on texts of the held-out split, whose labels and scores nothing reads here:
what a service will see has their lengths, and training texts may be shorter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from bertender.compression.candidates import Candidate
from bertender.compression.chain import build, graph_steps, probe_steps
from bertender.compression.config import CompressConfig
from bertender.compression.prediction import CostModel, fitted
from bertender.compression.records import Cost, Probe
from bertender.compression.variants import Variant
from bertender.core.artifact import Artifact
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.config import Record
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.measure.fresh import TimedModel, measure_models
from bertender.measure.latency import LatencyConfig
from bertender.measure.load import MachineLoad, check_load_now
from bertender.measure.size import measure_size
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.pipeline.stage import provided_by
from bertender.tasks.loading import sample
from bertender.tasks.task import Task
from bertender.text.batch import load_tokenizer

logger = logging.getLogger(__name__)

__all__ = [
    "CostModels",
    "Measured",
    "Probing",
    "cost_of",
    "probes_of",
    "timing_of",
]

TEXTS = 64
"""Of each split, that a probe reads."""
OF_NO_USE = {"parity_texts": TEXTS, "golden_texts": 0}
"""Settings of graphs that are only weighed and timed."""
ROUNDS = 6

CostModels = dict[tuple[str, Variant], CostModel]
"""(start, variant) -> the costs of its candidates"""


class Measured(Record):
    """Probes and teacher, measured in one run."""

    probes: tuple[Probe, ...]
    teacher: Cost
    load: MachineLoad | None
    obstacles: dict[str, str] = Field(
        default_factory=dict,
        description="start and variant, by their names -> why it has no candidate",
    )

    def models(self) -> CostModels:
        """Return the fits, by start and variant."""
        groups: dict[tuple[str, Variant], list[Probe]] = {}
        for probe in self.probes:
            groups.setdefault(_key(probe.candidate), []).append(probe)
        return {key: fitted(probes) for key, probes in groups.items()}


def probes_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those of one start and variant that the others can be predicted from.

    The shallowest and the deepest that nothing is cut of, and of one between them each cut alone
    and all together: a deep one takes minutes to export.
    """
    depths = sorted({each.layers for each in candidates})
    heads, ffn = (max(getattr(each, part) for each in candidates) for part in ("heads", "ffn"))
    vocab = any(each.vocab for each in candidates)
    whole = {"heads": 0.0, "ffn": 0.0, "vocab": False}
    between = {**whole, "layers": depths[len(depths) // 2]}
    changes = (
        {**whole, "layers": depths[0]},
        {**whole, "layers": depths[-1]},
        {**between, "heads": heads},
        {**between, "ffn": ffn},
        {**between, "heads": heads, "ffn": ffn, "vocab": vocab},
    )
    made = [candidates[0].model_copy(update=change) for change in changes]
    return [*dict.fromkeys(made)]


@dataclass(frozen=True)
class Probing:
    """Makes probes of a teacher's candidates, and measures them in turns with the teacher."""

    teacher: Artifact
    task: Task
    config: CompressConfig
    folder: Path
    """Of the probes; those that are there already are not made again."""
    announce: Callable[[str], None]

    def measured(self, candidates: Sequence[Candidate]) -> Measured:
        """Make and measure the probes of all starts and variants of the candidates.

        A start and variant of which a probe cannot be made, or whose products the runtime does not
        run in integers, is left out; but the whole teacher may have what its students have not.

        Raises:
            ModelError: none is left.
            MachineBusyError: other work disturbs the times, and the config does not allow noisy
                ones.
        """
        if not self.config.noisy:
            check_load_now()  # before the probes, which take minutes
        chosen, made, obstacles = [], [], {}
        groups = _groups(candidates)
        while groups:
            group = groups.pop(0)
            try:
                made += self._made_all(probes_of(group))
            except (ConfigError, ModelError, ParityError) as error:
                whole = [each for each in group if not each.is_distilled]
                among = "students of " if 0 < len(whole) < len(group) else ""
                groups += [whole] if among else []
                name = f"{among}{group[0].start.name} as {group[0].variant_name}"
                obstacles[name] = str(error)
                logger.warning("left out: %s: %s", name, error)
            else:
                chosen += probes_of(group)
        if not chosen:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in obstacles.items())
            raise ModelError(f"no candidate can be made. {reasons} Give other schemes or runtimes.")
        return self._timed(chosen, made).model_copy(update={"obstacles": obstacles})

    def measured_alone(self, candidate: Candidate) -> Measured:
        """Make and measure a probe of one candidate, as cut as it is.

        Raises:
            ConfigError, ModelError, ParityError: it cannot be made.
            MachineBusyError: as `measured`.
        """
        return self._timed([candidate], self._made_all([candidate]))

    def _timed(self, candidates: Sequence[Candidate], made: Sequence[TimedModel]) -> Measured:
        first = TimedModel(name="teacher", artifact=self.teacher.path.resolve())
        timed = measure_models([first, *made], self.task.dev.examples, timing_of(self.config))
        teacher_ms, *times_ms = (row.single.p50_ms for row in timed.rows)
        rows = zip(candidates, made, times_ms, strict=True)
        return Measured(
            probes=tuple(_probe(*row) for row in rows),
            teacher=cost_of(self.teacher, teacher_ms),
            load=timed.load,
        )

    def _made_all(self, probes: Sequence[Candidate]) -> list[TimedModel]:
        made = []
        for probe in probes:
            self.announce(f"probe {probe.name}")
            made.append(self._made(probe))
        return made

    def _made(self, probe: Candidate) -> TimedModel:
        """Return a probe: its graph is quantized, and no output of it is judged."""
        few, all_texts = _few(self.task), replace(_few(self.task), train=self.task.train)
        folder = self.folder / probe.shape_name
        students, cuts = probe_steps(probe, self.config)
        built = build(students, {"teacher": self.teacher}, few, folder)
        built = build(cuts, built.artifacts, all_texts, folder)  # which the vocabulary is cut for
        export, _ = graph_steps(probe, [*built.artifacts][-1], **OF_NO_USE)
        exported = build([export], built.artifacts, few, folder).last
        graph = _quantized(exported, few, probe, folder)
        return TimedModel(
            name=probe.name,
            artifact=exported.path.resolve(),
            graph=graph,
            runtime=probe.runtime,
        )


def _quantized(exported: Artifact, task: Task, variant: Variant, folder: Path) -> Path:
    """Return the graph of a variant, written now or before."""
    graph = (folder / f"{variant.variant_name}.onnx").resolve()
    write = provided_by("quantize.write")
    machine = environment()  # which decides what runs in integers
    identity = [exported.digest, variant.settings, library_versions()]
    identity += [machine.cpu_model, list(machine.cpu_flags)]
    build_once([graph], identity, lambda: write(exported, task, variant.settings, graph))
    return graph


def _probe(candidate: Candidate, model: TimedModel, single_ms: float) -> Probe:
    assert model.graph is not None  # every probe has one
    return Probe(
        candidate=candidate,
        entries=len(load_tokenizer(model.artifact)),
        cost=Cost(model_mb=model.graph.stat().st_size / 1e6, single_ms=single_ms),
    )


def cost_of(artifact: Artifact, single_ms: float) -> Cost:
    """Return what an artifact weighs, with its measured time."""
    size = measure_size(artifact, None).model_size_bytes
    return Cost(model_mb=size / 1e6, single_ms=single_ms)


def timing_of(config: CompressConfig) -> LatencyConfig:
    """Return how probes are timed: other runtimes would be disturbed by PyTorch in one process."""
    return LatencyConfig(
        processes=1 if set(config.runtimes) == {DEFAULT_RUNTIME} else 2,
        rounds=ROUNDS,
        threads=config.threads,
        seed=config.seed,
        noisy=config.noisy,
    )


def _few(task: Task) -> Task:
    """Return the task with a few texts of each split: nothing is learned or judged by a probe."""
    train, dev, selection = (
        sample(split, TEXTS, task.problem) for split in (task.train, task.dev, task.selection)
    )
    return replace(task, train=train, dev=dev, selection=selection)


def _groups(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    groups: dict[tuple[str, Variant], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(_key(candidate), []).append(candidate)
    return [*groups.values()]


def _key(candidate: Candidate) -> tuple[str, Variant]:
    return candidate.start.name, candidate.variant
