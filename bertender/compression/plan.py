"""The plan of a compression: probes measured, costs predicted, candidates that fit chosen."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.comparison.latency import TimedModel, measure_models
from bertender.comparison.records import LatencyConfig, measure_size
from bertender.compression.candidates import Candidate, Start, Variant, variants_of
from bertender.compression.config import CompressConfig
from bertender.compression.report import CandidateResult, CompressionReport, Cost, Probe
from bertender.compression.training import build, graph_steps, probe_steps
from bertender.core.artifact import Artifact
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.config import Record
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.core.machine import environment
from bertender.core.machine_load import MachineLoad, check_load_now
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.tasks.loading import sample
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from quantize.quantizer import write_graph

# --- from bertender.compression.prediction
# Bytes and time of models that were not made, from a few that were.
#
# Both are sums over what a model is made of: something fixed, and something for each layer, for
# its
# heads, for its neurons and for each entry of the vocabulary, which time does not depend on. So a
# least-squares fit through a few measured models of one start and variant predicts the rest.
# Attention computes in whole heads and the runtime in blocks of neurons, so that the fit is near
# and
# not exact; how near is a row of the report.

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Predicts the costs of candidates of one start and variant."""

    bytes_of: Floats
    """(5,): fixed, a layer, its attention, its feed-forward part, an entry of the vocabulary."""
    ms_of: Floats
    """(4,): the same without the vocabulary."""
    entries: Mapping[bool, int]
    """The vocabulary's size, cut or not."""
    depths: tuple[int, int]
    """The fewest and the most layers that it was fitted to."""

    def covers(self, candidate: Candidate) -> bool:
        """Return whether a candidate's depth lies in what it was fitted to."""
        fewest, most = self.depths
        return fewest <= candidate.layers <= most

    def predict(self, candidate: Candidate) -> Cost:
        """Return what a candidate will weigh and take."""
        layers = _layers(candidate)
        size = float(self.bytes_of @ [*layers, self.entries[candidate.vocab]])
        return Cost(model_mb=max(size, 0.0) / 1e6, single_ms=max(float(self.ms_of @ layers), 0.0))


def fitted(probes: Sequence[Probe]) -> CostModel:
    """Return the costs that probes of one start and variant have, by least squares."""
    layers = np.array([_layers(probe.candidate) for probe in probes])
    entries = np.array([probe.entries for probe in probes])
    sizes = np.array([1e6 * probe.cost.model_mb for probe in probes])
    depths = [probe.candidate.layers for probe in probes]
    times_ms = np.array([probe.cost.single_ms for probe in probes])
    return CostModel(
        bytes_of=_least_squares(np.column_stack([layers, entries]), sizes),
        ms_of=_least_squares(layers, times_ms),
        depths=(min(depths), max(depths)),
        entries={probe.candidate.vocab: probe.entries for probe in probes},
    )


def _layers(candidate: Candidate) -> list[float]:
    depth = candidate.layers
    return [1.0, depth, depth * (1 - candidate.heads), depth * (1 - candidate.ffn)]


def _least_squares(rows: Floats, values: Floats) -> Floats:
    """Return the weights of the columns; columns that rows cannot tell apart share theirs."""
    scale = np.abs(rows).max(0)
    scale[scale == 0] = 1  # of a part that no model here has
    weights, *_ = np.linalg.lstsq(rows / scale, values, rcond=None)
    return np.asarray(weights / scale)


# --- from bertender.compression.probes
# Probes: a few models of a start, hardly trained, whose bytes and time are measured.
#
# They span what candidates differ in: depth, heads, neurons, vocabulary. They are timed in turns,
# the teacher with them, on texts of the held-out split, whose labels and scores nothing reads
# here:
# what a service will see has their lengths, and training texts may be shorter.

logger = logging.getLogger(__name__)


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
    machine = environment()  # which decides what runs in integers
    identity = [exported.digest, variant.settings, library_versions()]
    identity += [machine.cpu_model, list(machine.cpu_flags)]
    build_once([graph], identity, lambda: write_graph(exported, task, variant.settings, graph))
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


# --- from bertender.compression.plan
# The plan of a compression: what every candidate will cost, which fit, and which are trained.

TOO_MUCH = "predicted beyond the limits"


def predicted(
    candidates: Iterable[Candidate], models: CostModels, config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates with their predicted costs, and whether these hold the limits."""
    results = []
    for candidate in candidates:
        if (key := (candidate.start.name, candidate.variant)) not in models:
            continue  # no probe of its start and variant could be made
        if not models[key].covers(candidate):
            continue  # nor of its depth
        cost = models[key].predict(candidate)
        fits = excess(cost, config) <= 1
        results.append(
            CandidateResult(
                candidate=candidate,
                predicted=cost,
                fits=fits,
                left_out=None if fits else TOO_MUCH,
            )
        )
    return results


def excess(cost: Cost, config: CompressConfig) -> float:
    """Return how many times the tightest limit is exceeded; at most 1 where all hold."""
    return max((of(cost) / limit for _, limit, of in _limits(config)), default=0.0)


def check_any(
    candidates: Sequence[Candidate], starts: Sequence[Start], config: CompressConfig
) -> None:
    """Raise ConfigError where the settings leave no candidate."""
    if candidates:
        return
    depths = ", ".join(f"{start.name} {start.layers}" for start in starts)
    asked = ",".join(map(str, config.layers))
    raise ConfigError(
        f"layers={asked}: no start has a depth among these. The layers that there are: {depths}. "
        "Give depths up to one of them, or other students."
    )


def check_feasible(results: Sequence[CandidateResult], config: CompressConfig) -> None:
    """Raise ConfigError with the nearest feasible point, where no candidate fits."""
    if any(result.fits for result in results):
        return
    nearest = min(results, key=lambda result: excess(result.cost, config))
    raise ConfigError(
        f"{_asked(config)}: none of {len(results)} candidates is expected to hold that. "
        f"{_nearest(nearest, config)} Or let more be cut, or try more variants (layers, "
        "heads, ffn, students, schemes, runtimes, fused_attention)."
    )


def none_holds(finished: Sequence[CandidateResult], config: CompressConfig) -> str:
    """Return the error where no trained candidate holds the limits."""
    tried = [each for each in finished if each.measured is not None]
    if not tried:
        reasons = "; ".join(f"{each.candidate.name}: {each.left_out}" for each in finished)
        return (
            f"no candidate could be quantized. {reasons}. Give other schemes or runtimes; where "
            "one label is predicted everywhere, another learning_rate or more epochs."
        )
    nearest = min(tried, key=lambda each: excess(each.cost, config))
    return (
        f"{_asked(config)}: no trained candidate holds that as measured. "
        f"{_nearest(nearest, config)} Or give more candidates."
    )


def with_trained(
    report: CompressionReport, done: Sequence[CandidateResult], chosen: Sequence[CandidateResult]
) -> CompressionReport:
    """Return a report with the candidates that were trained, and why the others were not."""
    trained = {each.candidate for each in done}
    rest = [each for each in report.candidates if each.candidate not in trained]
    rounds = {(one.candidate.shape_name, each) for one in done for each in one.rounds}
    minutes = sum(each.minutes for _, each in rounds)
    others = (_passed_over(each, chosen) for each in rest)
    return report.model_copy(update={"candidates": (*done, *others), "minutes": minutes})


def _passed_over(result: CandidateResult, chosen: Sequence[CandidateResult]) -> CandidateResult:
    """Return a candidate that was only predicted, with the reason."""
    if not result.fits:
        return result
    key = _start_and_depth(result)
    rival = any(_start_and_depth(each) == key for each in chosen)
    less_cut = "another one of its start and depth has as many weights left, or more"
    reason = less_cut if rival else "others fill the number of candidates to train"
    return result.model_copy(update={"left_out": reason})


def _asked(config: CompressConfig) -> str:
    return ", ".join(f"{name}={limit:g}" for name, limit, _ in _limits(config))


def _nearest(result: CandidateResult, config: CompressConfig) -> str:
    """Return the point nearest to the limits, and the limits that it would hold."""
    cost = result.cost
    wider = " and ".join(f"{name} {_up(of(cost))}" for name, _, of in _limits(config))
    return (
        f"The nearest is {result.candidate.name}, with {cost.model_mb:.2f} MB and "
        f"{cost.single_ms:.2f} ms. Give {wider} or more."
    )


def _limits(config: CompressConfig) -> list[tuple[str, float, Callable[[Cost], float]]]:
    """Return the limits that are set: name, value, and what they bound of a cost."""
    limits: list[tuple[str, float | None, Callable[[Cost], float]]] = [
        ("max_mb", config.max_mb, lambda cost: cost.model_mb),
        ("max_ms", config.max_ms, lambda cost: cost.single_ms),
    ]
    return [(name, limit, of) for name, limit, of in limits if limit is not None]


def entrants(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    """Return the candidates to train: of each start and depth the one with the least cut.

    More weights score better as a rule, so that a candidate that fits with more of them left takes
    the place of the others of its start and depth; of two that have as many, the one with the
    whole vocabulary, then the first variant: two schemes may differ in time by no more than noise,
    and then in what they lose; and another runtime is for what lets less be cut. Starts have
    turns, the one with the most weights left first.
    """
    return preferred([each for each in results if each.fits], config)


def preferred(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    order = {variant: place for place, variant in enumerate(variants_of(config))}
    listed = sorted(results, key=lambda result: order[result.candidate.variant])
    best = [_first(group) for group in _grouped(listed, _start_and_depth)]
    by_start = [sorted(group, key=_preference) for group in _grouped(best, _start)]
    by_start.sort(key=lambda group: _preference(group[0]))
    in_turn = [each for each in chain.from_iterable(zip_longest(*by_start)) if each is not None]
    return in_turn[: config.candidates]


def _first(results: Iterable[CandidateResult]) -> CandidateResult:
    return min(results, key=_preference)


def _preference(result: CandidateResult) -> tuple[float, bool]:
    """Return what sorts candidates, the preferred first; of equal ones the first stays first."""
    return -result.candidate.remaining, result.candidate.vocab


def _start(result: CandidateResult) -> str:
    return result.candidate.start.name


def _start_and_depth(result: CandidateResult) -> tuple[str, int]:
    return result.candidate.start.name, result.candidate.layers


def _grouped(
    results: Iterable[CandidateResult], key: Callable[[CandidateResult], Any]
) -> list[list[CandidateResult]]:
    return [[*group] for _, group in groupby(sorted(results, key=key), key)]


def _up(value: float) -> str:
    """Return a number rounded up to two digits after the point."""
    return f"{math.ceil(100 * value) / 100:.2f}"


# --- from bertender.compression.near_limits
# Candidates that are predicted near a limit: a probe of each decides whether it holds that.

NEAR = 0.05
"""Share of a limit: a prediction that is closer to it may be wrong about whether it is held."""
PROBE_TOO_MUCH = "beyond the limits, as a probe of it was measured"


def decided_near_limits(
    results: Sequence[CandidateResult],
    config: CompressConfig,
    measure: Callable[[Candidate], Measured],
) -> tuple[list[CandidateResult], list[Measured]]:
    """Return the candidates, none that would be trained undecided, and the probes of those.

    Where a probe holds no limit, another candidate takes its place, and may be near one too.

    Args:
        results: every candidate.
        config: the limits.
        measure: makes a probe of a candidate; one of which it can make none is left out.
    """
    decisions, made = list(results), []
    while near := undecided(decisions, config):
        for candidate in near:
            try:
                measured = measure(candidate)
            except (ConfigError, ModelError, ParityError) as error:
                decisions = _without(decisions, candidate, str(error))
            else:
                made.append(measured)
                decisions = decided(decisions, measured.probes, config)
    return decisions, made


def undecided(results: Sequence[CandidateResult], config: CompressConfig) -> list[Candidate]:
    """Return the candidates that would be trained, and are only predicted, near a limit."""
    wanted = preferred([each for each in results if _may_fit(each, config)], config)
    return [
        each.candidate
        for each in wanted
        if each.probe is None and excess(each.predicted, config) > 1 - NEAR
    ]


def decided(
    results: Sequence[CandidateResult], probes: Iterable[Probe], config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates, those of the probes with what these were measured at."""
    costs = {each.candidate: each.cost for each in probes}
    return [_decided(each, costs.get(each.candidate), config) for each in results]


def _may_fit(result: CandidateResult, config: CompressConfig) -> bool:
    if result.probe is not None or result.left_out not in (None, TOO_MUCH):
        return result.fits
    return excess(result.predicted, config) <= 1 + NEAR


def _decided(result: CandidateResult, cost: Cost | None, config: CompressConfig) -> CandidateResult:
    if cost is None:
        return result
    fits = excess(cost, config) <= 1
    return result.model_copy(
        update={"probe": cost, "fits": fits, "left_out": None if fits else PROBE_TOO_MUCH}
    )


def _without(
    results: Sequence[CandidateResult], candidate: Candidate, reason: str
) -> list[CandidateResult]:
    """Return the candidates, one of which is left out."""
    return [
        each.model_copy(update={"fits": False, "left_out": reason, "refused": True})
        if each.candidate == candidate
        else each
        for each in results
    ]
