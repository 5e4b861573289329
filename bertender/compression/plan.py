"""The plan of a compression: measure probes, predict costs, choose candidates that fit.

Size and latency are sums over parts: a fixed part, and a part for each layer, its heads, its
neurons and each entry of the vocabulary (which latency does not depend on). So a least-squares fit
through a few measured models of one start and variant, the probes, predicts the others. Attention
computes in whole heads and the runtime in blocks of neurons, so the fit is approximate; the report
shows its error.

Probes span the differences between candidates: depth, heads, neurons, vocabulary. They are timed in
turns with the teacher on texts of the held-out split, whose labels and scores are not read here: a
service will see texts of such lengths, and training texts may be shorter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.comparison.latency import TimedModel, measure_models
from bertender.comparison.records import LatencyConfig, measure_size
from bertender.compression.candidates import Candidate, Start, Variant, variants_of
from bertender.compression.config import CompressConfig
from bertender.compression.report import CandidateResult, CompressionReport, Cost, Probe
from bertender.compression.training import TEACHER, Announce, build, graph_steps, probe_steps
from bertender.core.artifact import Artifact
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.config import Record
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.core.machine import MachineLoad, check_load_now, environment
from bertender.core.progress import quiet_tools
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.recipes.stages import export_to_quantize, exported
from bertender.tasks.loading import sample
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from quantize.config import QuantizeConfig
from quantize.quantizer import write_graph

logger = logging.getLogger(__name__)

TEXTS = 64
"""Texts of each split that a probe reads."""
MEASURED_ONLY = {"parity_texts": TEXTS, "golden_texts": 0}
"""Settings of graphs that are only measured for size and latency."""
ROUNDS = 6
NEAR = 0.05
"""Share of a limit: a prediction that is closer to the limit may be on the wrong side."""
TOO_MUCH = "predicted beyond the limits"
PROBE_TOO_MUCH = "beyond the limits, as a probe of it was measured"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Predicts the costs of candidates of one start and variant."""

    bytes_of: Floats
    """(5,): fixed, per layer, per attention, per feed-forward part, per entry of the vocabulary."""
    ms_of: Floats
    """(4,): the same without the vocabulary."""
    entries: Mapping[bool, int]
    """Size of the vocabulary by whether it is cut."""
    depths: tuple[int, int]
    """The fewest and the most layers of its probes."""

    def covers(self, candidate: Candidate) -> bool:
        """Return whether a candidate's depth is within that of the probes."""
        fewest, most = self.depths
        return fewest <= candidate.layers <= most

    def predict(self, candidate: Candidate) -> Cost:
        """Return the predicted cost of a candidate."""
        parts = _parts(candidate)
        size = float(self.bytes_of @ [*parts, self.entries[candidate.vocab]])
        return Cost(model_mb=max(size, 0.0) / 1e6, single_ms=max(float(self.ms_of @ parts), 0.0))


CostModels = dict[tuple[str, Variant], CostModel]
"""(start, variant) -> cost model"""


def fitted(probes: Sequence[Probe]) -> CostModel:
    """Return the cost model of probes of one start and variant, by least squares."""

    def least_squares(rows: Floats, values: Floats) -> Floats:
        """Return the weights of the columns; collinear columns share their weight."""
        scale = np.abs(rows).max(0)
        scale[scale == 0] = 1  # of a part that no probe has
        weights, *_ = np.linalg.lstsq(rows / scale, values, rcond=None)
        return np.asarray(weights / scale)

    parts = np.array([_parts(probe.candidate) for probe in probes])
    entries = np.array([probe.entries for probe in probes])
    sizes = np.array([1e6 * probe.cost.model_mb for probe in probes])
    times_ms = np.array([probe.cost.single_ms for probe in probes])
    depths = [probe.candidate.layers for probe in probes]
    return CostModel(
        bytes_of=least_squares(np.column_stack([parts, entries]), sizes),
        ms_of=least_squares(parts, times_ms),
        depths=(min(depths), max(depths)),
        entries={probe.candidate.vocab: probe.entries for probe in probes},
    )


def _parts(candidate: Candidate) -> list[float]:
    depth = candidate.layers
    return [1.0, depth, depth * (1 - candidate.heads), depth * (1 - candidate.ffn)]


def _start_and_variant(candidate: Candidate) -> tuple[str, Variant]:
    return candidate.start.name, candidate.variant


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
        """Return the cost models, by start and variant."""
        groups: dict[tuple[str, Variant], list[Probe]] = {}
        for probe in self.probes:
            groups.setdefault(_start_and_variant(probe.candidate), []).append(probe)
        return {key: fitted(probes) for key, probes in groups.items()}


def probes_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates of one start and variant from which the others can be predicted.

    These are the shallowest and the deepest without any cut, and at a depth between them each cut
    alone and all cuts together: a deep probe takes minutes to export.
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
    return [*dict.fromkeys(candidates[0].model_copy(update=change) for change in changes)]


@dataclass(frozen=True)
class Probing:
    """Makes probes of a teacher's candidates, and measures them in turns with the teacher."""

    teacher: Artifact
    task: Task
    config: CompressConfig
    folder: Path
    """Folder of the probes; finished probes are reused."""
    announce: Announce

    def measured(self, candidates: Sequence[Candidate]) -> Measured:
        """Make and measure the probes of all starts and variants of the candidates.

        A start and variant is left out if a probe cannot be made, or if the runtime does not run
        its products in integers; the whole teacher may have what its students lack.

        Raises:
            ModelError: no start and variant is left.
            MachineBusyError: other work disturbs the times, and the config does not allow noisy
                ones.
        """
        if not self.config.noisy:
            check_load_now()  # before the probes, which take minutes
        by_key: dict[tuple[str, Variant], list[Candidate]] = {}
        for candidate in candidates:
            by_key.setdefault(_start_and_variant(candidate), []).append(candidate)
        chosen, made, obstacles, groups = [], [], {}, [*by_key.values()]
        while groups:
            group = groups.pop(0)
            probes = probes_of(group)
            try:
                made += [self._made(probe) for probe in probes]
            except (ConfigError, ModelError, ParityError) as error:
                whole = [each for each in group if not each.is_distilled]
                among = "students of " if 0 < len(whole) < len(group) else ""
                groups += [whole] if among else []
                name = f"{among}{group[0].start.name} as {group[0].variant_name}"
                obstacles[name] = str(error)
                logger.warning("left out: %s: %s", name, error)
            else:
                chosen += probes
        if not chosen:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in obstacles.items())
            raise ModelError(f"no candidate can be made. {reasons} Give other schemes or runtimes.")
        return self._timed(chosen, made).model_copy(update={"obstacles": obstacles})

    def measured_alone(self, candidate: Candidate) -> Measured:
        """Make and measure a probe of one candidate, with its own cuts.

        Raises:
            ConfigError, ModelError, ParityError: the probe cannot be made.
            MachineBusyError: as for `measured`.
        """
        return self._timed([candidate], [self._made(candidate)])

    def _timed(self, candidates: Sequence[Candidate], made: Sequence[TimedModel]) -> Measured:
        first = TimedModel(name="teacher", artifact=self.teacher.path.resolve())
        asked = self.task.problem.asked(self.task.dev.examples)
        timed = measure_models([first, *made], asked, timing_of(self.config))
        teacher_ms, *times_ms = (row.single.p50_ms for row in timed.rows)
        probes = []
        for candidate, model, single_ms in zip(candidates, made, times_ms, strict=True):
            assert model.graph is not None  # every probe has one
            cost = Cost(model_mb=model.graph.stat().st_size / 1e6, single_ms=single_ms)
            entries = len(load_tokenizer(model.artifact))
            probes.append(Probe(candidate=candidate, entries=entries, cost=cost))
        return Measured(
            probes=tuple(probes), teacher=cost_of(self.teacher, teacher_ms), load=timed.load
        )

    def _made(self, probe: Candidate) -> TimedModel:
        """Return a probe with its quantized graph; its outputs are not judged."""
        self.announce(f"probe {probe.name}")
        # a few texts of each split: a probe learns nothing, and is not judged
        task = self.task
        train, dev, selection = (
            sample(split, TEXTS, task.problem) for split in (task.train, task.dev, task.selection)
        )
        # the label map is not doubted because a probe scores below chance: the teacher's was
        # checked
        source = {name: value for name, value in task.source.items() if name != "label_map"}
        few = replace(task, train=train, dev=dev, selection=selection, source=source)
        folder = self.folder / probe.shape_name
        students, cuts = probe_steps(probe, self.config)
        all_texts = replace(few, train=task.train)  # the vocabulary is cut for these
        with quiet_tools():  # they would warn of a hardly trained model
            built = build(students, {TEACHER: self.teacher}, few, folder)
            built = build(cuts, built.artifacts, all_texts, folder)
            export, _ = graph_steps(probe, [*built.artifacts][-1], **MEASURED_ONLY)
            floats = build([export], built.artifacts, few, folder).last
            if again := export_to_quantize(floats, QuantizeConfig.parse(probe.settings)):
                floats = exported(again[0], few, again[1])
        graph = (folder / f"{probe.variant_name}.onnx").resolve()
        machine = environment()  # decides what runs in integers
        identity = [floats.digest, probe.settings, library_versions()]
        identity += [machine.cpu_model, list(machine.cpu_flags)]
        build_once([graph], identity, lambda: write_graph(floats, few, probe.settings, graph))
        place = floats.path.resolve()
        return TimedModel(name=probe.name, artifact=place, graph=graph, runtime=probe.runtime)


def cost_of(artifact: Artifact, single_ms: float) -> Cost:
    """Return the cost of an artifact with its measured time."""
    size = measure_size(artifact, None).model_size_bytes
    return Cost(model_mb=size / 1e6, single_ms=single_ms)


def timing_of(config: CompressConfig) -> LatencyConfig:
    """Return how to time probes: in one process, PyTorch would disturb other runtimes."""
    return LatencyConfig(
        processes=1 if set(config.runtimes) == {DEFAULT_RUNTIME} else 2,
        rounds=ROUNDS,
        threads=config.threads,
        seed=config.seed,
        noisy=config.noisy,
    )


def predicted(
    candidates: Iterable[Candidate], models: CostModels, config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates with their predicted costs, and whether these are within the limits."""
    results = []
    for candidate in candidates:
        model = models.get(_start_and_variant(candidate))
        if model is None or not model.covers(candidate):
            continue  # no probe of its start and variant, or of its depth, could be made
        cost = model.predict(candidate)
        fits = excess(cost, config) <= 1
        reason = None if fits else TOO_MUCH
        results.append(
            CandidateResult(candidate=candidate, predicted=cost, fits=fits, left_out=reason)
        )
    return results


def _limits(config: CompressConfig) -> dict[str, tuple[float, str]]:
    """Return the limits that are set: name -> value, and the field of a cost that it bounds."""
    limits = {"max_mb": (config.max_mb, "model_mb"), "max_ms": (config.max_ms, "single_ms")}
    return {name: (most, of) for name, (most, of) in limits.items() if most is not None}


def excess(cost: Cost, config: CompressConfig) -> float:
    """Return cost over limit for the tightest limit; at most 1 if all limits hold."""
    shares = (float(getattr(cost, of)) / most for most, of in _limits(config).values())
    return max(shares, default=0.0)


def decided_near_limits(
    results: Sequence[CandidateResult],
    config: CompressConfig,
    measure: Callable[[Candidate], Measured],
) -> tuple[list[CandidateResult], list[Measured]]:
    """Return the candidates after probing those to train that are near a limit, and these probes.

    Where a probe exceeds a limit, another candidate takes its place, and may be near a limit too.

    Args:
        results: every candidate.
        config: the limits.
        measure: makes a probe of a candidate; candidates whose probe cannot be made are left out.
    """
    decisions, made = [*results], []
    while near := undecided(decisions, config):
        for candidate in near:
            try:
                measured = measure(candidate)
            except (ConfigError, ModelError, ParityError) as error:
                refused = {"fits": False, "left_out": str(error), "refused": True}
                decisions = [
                    each.model_copy(update=refused) if each.candidate == candidate else each
                    for each in decisions
                ]
            else:
                made.append(measured)
                decisions = decided(decisions, measured.probes, config)
    return decisions, made


def undecided(results: Sequence[CandidateResult], config: CompressConfig) -> list[Candidate]:
    """Return the candidates that would be trained, near a limit, and have no probe yet."""

    def may_fit(result: CandidateResult) -> bool:
        if result.probe is not None or result.left_out not in (None, TOO_MUCH):
            return result.fits
        return excess(result.predicted, config) <= 1 + NEAR

    return [
        each.candidate
        for each in _preferred([each for each in results if may_fit(each)], config)
        if each.probe is None and excess(each.predicted, config) > 1 - NEAR
    ]


def decided(
    results: Sequence[CandidateResult], probes: Iterable[Probe], config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates, with measurements for those that have a probe."""
    costs = {each.candidate: each.cost for each in probes}
    decisions = [*results]
    for place, each in enumerate(results):
        if (cost := costs.get(each.candidate)) is not None:
            fits = excess(cost, config) <= 1
            update = {"probe": cost, "fits": fits, "left_out": None if fits else PROBE_TOO_MUCH}
            decisions[place] = each.model_copy(update=update)
    return decisions


def entrants(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    """Return the candidates to train: the least cut one of each start and depth.

    More weights usually score better, so the candidate with the most remaining weights is taken for
    each start and depth. Ties go to the whole vocabulary, then to the first variant: two schemes
    may differ in time by no more than noise, and then in the score they lose; another runtime is
    for models that need less cutting. Starts take turns, the one with the most remaining weights
    first.
    """
    return _preferred([each for each in results if each.fits], config)


def _preferred(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    order = {variant: place for place, variant in enumerate(variants_of(config))}

    def preference(result: CandidateResult) -> tuple[float, bool]:
        return -result.candidate.remaining, result.candidate.vocab

    best: dict[tuple[str, int], CandidateResult] = {}
    listed = sorted(results, key=lambda each: (*preference(each), order[each.candidate.variant]))
    for each in listed:
        best.setdefault((each.candidate.start.name, each.candidate.layers), each)
    by_start: dict[str, list[CandidateResult]] = {}
    for (start, _), each in sorted(best.items(), key=lambda item: (*preference(item[1]), item[0])):
        by_start.setdefault(start, []).append(each)
    turns = chain.from_iterable(zip_longest(*by_start.values()))
    return [each for each in turns if each is not None][: config.candidates]


def with_trained(
    report: CompressionReport, done: Sequence[CandidateResult], chosen: Sequence[CandidateResult]
) -> CompressionReport:
    """Return a report with the trained candidates, and why the others were not trained."""
    trained = {each.candidate for each in done}
    entered = {(each.candidate.start.name, each.candidate.layers) for each in chosen}
    others = []
    for each in report.candidates:
        if each.candidate in trained:
            continue
        reason = each.left_out
        if each.fits:
            reason = "others fill the number of candidates to train"
            if (each.candidate.start.name, each.candidate.layers) in entered:
                reason = "another one of its start and depth has as many weights left, or more"
        others.append(each.model_copy(update={"left_out": reason}))
    rounds = {(one.candidate.shape_name, each) for one in done for each in one.rounds}
    minutes = sum(each.minutes for _, each in rounds)
    return report.model_copy(update={"candidates": (*done, *others), "minutes": minutes})


def check_any(
    candidates: Sequence[Candidate], starts: Sequence[Start], config: CompressConfig
) -> None:
    """Raise ConfigError where the settings allow no candidate."""
    if candidates:
        return
    depths = ", ".join(f"{start.name} {start.layers}" for start in starts)
    asked = ",".join(map(str, config.layers))
    raise ConfigError(
        f"layers={asked}: no start has a depth among these. The layers that there are: {depths}. "
        "Give depths up to one of them, or other students."
    )


def check_feasible(results: Sequence[CandidateResult], config: CompressConfig) -> None:
    """Raise ConfigError with the nearest feasible point if no candidate fits."""
    if any(result.fits for result in results):
        return
    asked, nearest = _asked_and_nearest(results, config)
    raise ConfigError(
        f"{asked}: none of {len(results)} candidates is expected to hold that. {nearest} Or let "
        "more be cut, or try more variants (layers, heads, ffn, students, schemes, runtimes, "
        "fused_attention)."
    )


def no_candidate_error(finished: Sequence[CandidateResult], config: CompressConfig) -> str:
    """Return the error for no trained candidate within the limits."""
    tried = [each for each in finished if each.measured is not None]
    if not tried:
        reasons = "; ".join(f"{each.candidate.name}: {each.left_out}" for each in finished)
        return (
            f"no candidate could be quantized. {reasons}. Give other schemes or runtimes; where "
            "one label is predicted everywhere, another learning_rate or more epochs."
        )
    asked, nearest = _asked_and_nearest(tried, config)
    return (
        f"{asked}: no trained candidate holds that as measured. {nearest} Or give more candidates."
    )


def _asked_and_nearest(
    results: Sequence[CandidateResult], config: CompressConfig
) -> tuple[str, str]:
    """Return the limits, and the nearest point with the limits that it would fit."""
    limits = _limits(config)
    nearest = min(results, key=lambda result: excess(result.cost, config))
    cost = nearest.cost
    wider = " and ".join(  # rounded up to two digits after the point
        f"{name} {math.ceil(100 * getattr(cost, of)) / 100:.2f}" for name, (_, of) in limits.items()
    )
    return (
        ", ".join(f"{name}={most:g}" for name, (most, _) in limits.items()),
        f"The nearest is {nearest.candidate.name}, with {cost.model_mb:.2f} MB and "
        f"{cost.single_ms:.2f} ms. Give {wider} or more.",
    )
