"""Measures an endpoint next to other ways to serve the same model, and to the model in process.

    python -m benchmarks.serving ARTIFACT --out FILE.json [--task sst2] [--rounds 3]
        [--systems A,B] [--no-limits]

Every system of SYSTEMS that can run here, or of `--systems`, is started on loopback, in turns, for
every workload, and gets the rows of LOADS in a closed loop, over gRPC or HTTP, with requests that
were prepared before. The server has one core and the generator another (`--no-pin`: both have all).
The ceiling is the model in a process of its own on the server's core. Last, the highest rate of
single texts that holds a p99 is looked for, once a system and workload. A call that was interrupted
continues after its last round, and one that ended measures nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common.options import (
    HeldOutTaskOption,
    OutFile,
    PinFlag,
    ServedArtifactArgument,
    SloOption,
    names_in,
)
from benchmarks.common.pinning import NOT_PINNED, PINNED
from benchmarks.common.resuming import continued
from benchmarks.common.saving import NoisyFlag, check_noisy_out
from benchmarks.serving.prepared import PreparedTexts, check_servable, prepared_texts
from benchmarks.serving.records import ServingBenchmark, ServingConfig
from benchmarks.serving.rounds import LIMITED, ServingMeasurement
from benchmarks.serving.systems import SYSTEMS
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.machine import environment
from bertender.core.machine_load import check_load_now
from bertender.core.progress import show_progress
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig

__all__ = [
    "begin",
    "run",
    "show_left_out",
]


def begin(
    artifact: Artifact, texts: Sequence[str], config: ServingConfig, out: Path | None = None
) -> ServingMeasurement:
    """Check what a measurement needs, and return it.

    Args:
        artifact: what is served.
        texts: the task's, of which workloads are made.
        config: how it is measured; without systems, by all that can run here.
        out: file that gets each round when it ends; one that is there already is continued.

    Raises:
        ModelError: the artifact is not an ONNX classifier of single texts.
        ConfigError: a system is unknown or cannot run here, or limits are asked for without those
            that have them.
        BadParameter: the file is something else, or of other settings.
        MachineBusyError: other work would disturb the figures, and the config allows no noisy ones.
    """
    check_servable(artifact)
    _check_systems(config)
    config.pins.check()
    if not config.noisy:
        check_load_now()
    workloads = prepared_texts(artifact, texts)
    begun = _begun(artifact, workloads, config)
    if out is not None:
        begun = continued(begun, out, "ceilings", "visits", "limits")
    return ServingMeasurement(artifact, workloads, begun, out)


def _begun(
    artifact: Artifact, workloads: Mapping[str, PreparedTexts], config: ServingConfig
) -> ServingBenchmark:
    """Return a result without figures."""
    return ServingBenchmark(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        parameters=artifact.card.findings.parameters,
        config=config,
        workloads={name: each.lengths for name, each in workloads.items()},
        left_out={
            name: ", ".join(SYSTEMS[name].missing)
            for name in config.systems or SYSTEMS
            if SYSTEMS[name].missing
        },
        environment=environment(),
    )


def _check_systems(config: ServingConfig) -> None:
    """Raise ConfigError for systems that are unknown, not installed, or without limits."""
    for name in config.systems:
        if missing := ", ".join(SYSTEMS[name].missing):
            raise ConfigError(
                f"--systems {name}: {missing} is not installed (pip install {missing})."
            )
    if config.limits and config.systems and (absent := {*LIMITED} - {*config.systems}):
        raise ConfigError(
            f"--systems {','.join(config.systems)}: limits are of {' and '.join(LIMITED)}. Add "
            f"{', '.join(sorted(absent))}, or give --no-limits."
        )


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
        systems=tuple(names_in("--systems", systems, SYSTEMS)),
        rounds=rounds,
        duration_s=duration_s,
        slo_p99_ms=slo_p99_ms,
        limits=limits,
        pins=PINNED if pin else NOT_PINNED,
        seed=seed,
        noisy=noisy,
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    measurement = begin(Artifact.load(artifact), texts, config, out)
    if measurement.is_finished:
        typer.echo(f"{out} is finished: nothing is measured. Another --out measures it again.")
    result = measurement.run()
    show_left_out(result)
    for visit in result.visits:
        speeds = ", ".join(f"{run.load} {run.texts_per_second:.4g}" for run in visit.runs)
        typer.echo(f"{visit.workload}, {visit.system}, round {visit.round + 1}: {speeds} texts/s")
