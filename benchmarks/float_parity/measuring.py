"""Parity of float artifacts over runtimes: each against itself in ONNX Runtime.

    python -m benchmarks.float_parity ARTIFACT ... --out FILE.json [--runtime NAME,NAME] [--texts N]

ARTIFACT is what `bertender export` wrote. Every runtime is judged by the tolerance of the floats
that it computes in, as `bertender verify ARTIFACT ARTIFACT --runtime NAME` judges it. Nothing is
timed, so other work may run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from benchmarks.common.options import OutFile, RuntimesOption, names_in
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import ConfigError
from bertender.core.progress import show_progress
from bertender.core.saving import check_savable, save_result
from bertender.measure.runtimes import check_installed, tolerance_in
from bertender.measure.verify import Verification, VerifyConfig, verify
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.pipeline.recorded_task import recorded_task

__all__ = ["FloatParity", "FloatParityBenchmark", "measure_parity", "run"]


class FloatParity(Record):
    """An artifact in one runtime."""

    layers: int
    task: str
    texts: int = Field(description="held-out ones; the gate adds some of its own")
    tolerance: str = Field(description="row of TOLERANCES")
    parity: Verification


class FloatParityBenchmark(Record):
    """Every artifact in every runtime."""

    rows: tuple[FloatParity, ...]
    environment: Environment


def measure_parity(artifact: Artifact, runtime: str, texts: int | None) -> FloatParity:
    """Compare an artifact in a runtime with itself in ONNX Runtime, on held-out texts of its task.

    Raises:
        ConfigError: it is not one of floats that was exported.
        RuntimeMissingError: the runtime is not installed, or this CPU lacks what it needs.
    """
    graph = artifact.card.findings.graph
    if graph is None or artifact.card.precision != "float32":
        raise ConfigError(
            f"{artifact.path} is of kind {artifact.card.kind} in {artifact.card.precision}. Give "
            "what `bertender export` wrote, in float32."
        )
    config = VerifyConfig.parse({"runtime": runtime, "texts": texts})
    task = recorded_task(artifact, {})
    parity = verify(artifact, artifact, task, config, lambda *_: None)
    tolerance = tolerance_in(runtime, artifact.card.precision)
    return FloatParity(
        layers=graph.layers,
        task=task.name,
        texts=min(texts or len(task.dev), len(task.dev)),
        tolerance=tolerance,
        parity=parity,
    )


def run(
    artifacts: Annotated[list[Path], typer.Argument(help="exported artifacts")],
    out: OutFile,
    runtime: RuntimesOption = "openvino,openvino-bf16",
    texts: Annotated[int | None, typer.Option(min=1, help="of each; all by default")] = None,
) -> None:
    """Compare float artifacts in other runtimes with themselves in ONNX Runtime."""
    show_progress()
    check_savable("--out", out, "JSON")
    names = names_in("--runtime", runtime, RUNTIMES, required=True)
    if DEFAULT_RUNTIME in names:
        others = ", ".join(name for name in RUNTIMES if name != DEFAULT_RUNTIME)
        raise ConfigError(
            f"--runtime {runtime}: {DEFAULT_RUNTIME} is the one that others are compared with. "
            f"Leave it out; there are {others}."
        )
    check_installed(*names)
    opened = [Artifact.load(path) for path in artifacts]
    rows = [measure_parity(each, name, texts) for each in opened for name in names]
    save_result(FloatParityBenchmark(rows=tuple(rows), environment=environment()), out)
