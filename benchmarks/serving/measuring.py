"""Measures an endpoint next to other ways to serve the same model, and to the model in process.

    python -m benchmarks.serving ARTIFACT --out FILE.json [--task sst2] [--rounds 3]
        [--systems A,B] [--no-limits]

Every system of SYSTEMS is started on loopback, in turns, for every workload, and gets the rows of
LOADS in a closed loop, over gRPC or HTTP, with requests that were prepared before. The server has
one core and the generator another (`--no-pin`: both have all). The ceiling is the model in a
process of its own on the server's core. Last, the highest rate of single texts that holds a p99 is
looked for, once a system and workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import tokenizers
import typer

from benchmarks.common.options import (
    HeldOutTaskOption,
    OutFile,
    PinFlag,
    ServedArtifactArgument,
    SloOption,
)
from benchmarks.common.pinning import NOT_PINNED, PINNED
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving.ceiling import time_in_process
from benchmarks.serving.loads import StartedSystem, started
from benchmarks.serving.records import (
    LOADS,
    Ceiling,
    ServingBenchmark,
    ServingConfig,
    ServingLimit,
    ServingRun,
    ServingVisit,
)
from benchmarks.serving.systems import OWN, PADDED, SYSTEMS, Service
from benchmarks.serving.texts import LONGEST_TOKENS, WORKLOADS, TextLengths, lengths_of
from benchmarks.serving.undisturbed import undisturbed
from bertender.core.artifact import Artifact
from bertender.core.config import parts_of
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, ModelError
from bertender.core.progress import Bar, progress_bar, show_progress
from bertender.measure.load import LoadMeter, check_load, check_load_now
from bertender.problems import PROBLEMS
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from bertender.text.tokenizer_file import open_tokenizer
from serve.loadtest.limit import FIRST_RATE

__all__ = [
    "PreparedTexts",
    "check_servable",
    "measure_serving",
    "prepared_texts",
    "run",
    "show_left_out",
]

ALONE, SATURATING = "one caller", "1 text a request"
"""Rows of LOADS: whose latency a p99 must leave room for, and whose throughput says where the
search of a limit begins."""

LATENCIES_OF_SLO = 3.0
LIMITED = (OWN, PADDED)
"""Systems whose limits are compared."""


@dataclass(frozen=True)
class PreparedTexts:
    """A workload, made for a model."""

    texts: list[str]
    lengths: TextLengths
    longest: int
    """Input of the model, in tokens."""

    def service(self, artifact: Artifact) -> Service:
        """Return what servers of the model are started with for this workload."""
        maximum = min(self.longest, LONGEST_TOKENS)
        return Service(artifact, self.longest, maximum, min(self.lengths.rounded, maximum))


def prepared_texts(artifact: Artifact, texts: Sequence[str]) -> dict[str, PreparedTexts]:
    """Return each row of WORKLOADS, made of a task's texts for a model."""
    tokenizer = tokenizers.Tokenizer.from_file(str(artifact.path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    problem = PROBLEMS[artifact.card.task.problem_type]
    longest = problem.encoder(open_tokenizer(artifact.path), None).max_length

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    made = {name: row.make(texts, count, longest) for name, row in WORKLOADS.items()}
    return {
        name: PreparedTexts(each, lengths_of(each, count), longest) for name, each in made.items()
    }


def measure_serving(
    artifact: Artifact, texts: Sequence[str], config: ServingConfig
) -> ServingBenchmark:
    """Measure every system that is installed, on every workload.

    Raises:
        ModelError: the artifact is not an ONNX classifier of single texts.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
        ServingError: a server does not start.
    """
    check_servable(artifact)
    _check_systems(config)
    config.pins.check()
    if not config.noisy:
        check_load_now()
    measurement = _Measurement(artifact, config, prepared_texts(artifact, texts))
    measurement.run()
    return ServingBenchmark(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        parameters=artifact.card.findings.parameters,
        config=config,
        workloads={name: each.lengths for name, each in measurement.workloads.items()},
        ceilings=tuple(measurement.ceilings),
        visits=tuple(measurement.visits),
        limits=tuple(measurement.limits),
        left_out={
            name: ", ".join(SYSTEMS[name].missing)
            for name in config.systems or SYSTEMS
            if SYSTEMS[name].missing
        },
        environment=environment(),
    )


def check_servable(artifact: Artifact) -> None:
    """Raise ModelError for what no server of single texts runs."""
    columns = artifact.card.task.text_columns
    if artifact.card.kind != "onnx" or len(columns) != 1:
        raise ModelError(
            f"{artifact.path} is a {artifact.card.kind!r} artifact of {len(columns)} text columns; "
            "this benchmark serves 'onnx' artifacts of one. Export it first: `bertender export`."
        )


def _check_systems(config: ServingConfig) -> None:
    """Raise UnknownNameError or ConfigError for systems that are not there, or have no limits."""
    for name in config.systems:
        SYSTEMS[name]  # raises
    if config.limits and config.systems and (absent := {*LIMITED} - {*config.systems}):
        raise ConfigError(
            f"--systems {','.join(config.systems)}: limits are of {' and '.join(LIMITED)}. Add "
            f"{', '.join(sorted(absent))}, or give --no-limits."
        )


class _Measurement:
    """Rounds of every system and of the ceiling, in turns; then the limits."""

    def __init__(
        self, artifact: Artifact, config: ServingConfig, workloads: dict[str, PreparedTexts]
    ) -> None:
        self.artifact = artifact
        self.config = config
        self.workloads = workloads
        self.systems = {
            workload: [
                name
                for name in config.systems or SYSTEMS
                if not SYSTEMS[name].missing
                and SYSTEMS[name].is_another(prepared.service(artifact))
            ]
            for workload, prepared in workloads.items()
        }
        self.draw = np.random.default_rng(config.seed)
        self.ceilings: list[Ceiling] = []
        self.visits: list[ServingVisit] = []
        self.limits: list[ServingLimit] = []

    def run(self) -> None:
        visits = sum(len(names) + 1 for names in self.systems.values()) * self.config.rounds
        total = visits + len(LIMITED) * len(self.workloads) * self.config.limits
        with progress_bar("serving", total=total) as bar:
            for number in range(self.config.rounds):
                for workload in self.workloads:
                    self._round(workload, number, bar)
            if self.config.limits:
                self._limits(bar)

    def _round(self, workload: str, number: int, bar: Bar) -> None:
        bar.note(f"round {number + 1}: {workload}")
        self.ceilings.append(undisturbed(partial(self._ceiling, workload, number)))
        bar.advance()
        for system in self.draw.permutation(self.systems[workload]):
            self.visits.append(undisturbed(partial(self._visit, str(system), workload, number)))
            bar.advance()

    def _limits(self, bar: Bar) -> None:
        for workload in self.workloads:
            for system in LIMITED:
                bar.note(f"limit of {system}: {workload}")
                self.limits.append(undisturbed(partial(self._limit, system, workload)))
                bar.advance()

    def _ceiling(self, workload: str, number: int) -> Ceiling:
        meter = LoadMeter()
        cells = time_in_process(
            self.artifact,
            self.workloads[workload].texts,
            self.config.duration_s,
            self.config.pins.server,
        )
        load = meter.stop()
        check_load(load, self.config.noisy)
        return Ceiling(workload=workload, round=number, cells=tuple(cells), load=load)

    def _visit(self, system: str, workload: str, number: int) -> ServingVisit:
        with self._started(system, workload) as asked:
            meter = LoadMeter()
            runs = [ServingRun.of_load(name, asked.closed(row)) for name, row in LOADS.items()]
            load = meter.stop()  # while the server is there: its time is not other work
        check_load(load, self.config.noisy)
        return ServingVisit(
            system=system, workload=workload, round=number, runs=tuple(runs), load=load
        )

    def _limit(self, system: str, workload: str) -> ServingLimit:
        with self._started(system, workload) as asked:
            meter = LoadMeter()
            slo_p99_ms = self._slo_p99_ms(workload)
            limit, reason = asked.limit(slo_p99_ms, self._first_rate(system, workload))
            load = meter.stop()
        check_load(load, self.config.noisy)
        return ServingLimit(
            system=system,
            workload=workload,
            slo_p99_ms=slo_p99_ms,
            limit=limit,
            reason=reason,
            load=load,
        )

    def _slo_p99_ms(self, workload: str) -> float:
        """Return a p99 that the padded repository can hold at some rate."""
        latencies = [
            p50_ms
            for visit in self.visits
            if (visit.system, visit.workload) == (PADDED, workload)
            if (p50_ms := visit.run(ALONE).p50_ms) is not None
        ]
        slowest = max(latencies, default=0.0)
        return max(self.config.slo_p99_ms, float(np.ceil(LATENCIES_OF_SLO * slowest)))

    def _first_rate(self, system: str, workload: str) -> float:
        """Return half of what clients without pauses reached: near the limit, and below it."""
        rates = [
            visit.run(SATURATING).texts_per_second
            for visit in self.visits
            if (visit.system, visit.workload) == (system, workload)
        ]
        return max(FIRST_RATE, float(np.median(rates)) / 2)

    def _started(self, system: str, workload: str) -> AbstractContextManager[StartedSystem]:
        own = self.workloads[workload]
        return started(SYSTEMS[system], own.service(self.artifact), own.texts, self.config)


def show_left_out(result: ServingBenchmark) -> None:
    """Print which servers are not installed, and what installs them."""
    for name, missing in result.left_out.items():
        typer.echo(f"{name} is left out: {missing} is not installed (pip install {missing})")


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
    systems: Annotated[str, typer.Option(help="by commas; all that can run by default")] = "",
    rounds: Annotated[int, typer.Option(min=3, max=20, help="starts of each system")] = 3,
    duration_s: Annotated[float, typer.Option(help="seconds of each load in a round")] = 1.5,
    slo_p99_ms: SloOption = 50.0,
    limits: Annotated[bool, typer.Option(help="look for the limits")] = True,
    pin: PinFlag = True,
    seed: Annotated[int, typer.Option(help="which texts are drawn")] = 0,
    noisy: NoisyFlag = False,
) -> None:
    """Measure an endpoint next to other servers of the same model."""
    show_progress()
    check_noisy_out(noisy, out)
    config = ServingConfig(
        systems=parts_of(systems),
        rounds=rounds,
        duration_s=duration_s,
        slo_p99_ms=slo_p99_ms,
        limits=limits,
        pins=PINNED if pin else NOT_PINNED,
        seed=seed,
        noisy=noisy,
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    result = measure_serving(Artifact.load(artifact), texts, config)
    show_left_out(result)
    for visit in result.visits:
        speeds = ", ".join(f"{run.load} {run.texts_per_second:.4g}" for run in visit.runs)
        typer.echo(f"{visit.workload}, {visit.system}, round {visit.round + 1}: {speeds} texts/s")
    save_benchmark(result, out)
