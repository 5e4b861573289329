"""Comparing two artifacts on a task's held-out texts, and their graphs where both are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from bertender.comparison.runtimes import check_installed, check_used, runtime_of, tolerance_in
from bertender.core.artifact import Artifact
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.core.machine import Environment, environment
from bertender.gate.cases import Arrangement
from bertender.gate.judge import Parity, check_parity, labelled_sample
from bertender.gate.tolerances import TOLERANCES
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, RuntimeName
from bertender.tasks.task import Task

GraphFailures: TypeAlias = Callable[[Artifact, Artifact, Task], tuple[str, ...] | None]
"""(reference, candidate, task) -> what is wrong in the candidate's graph; None where there are no
two graphs to compare"""


class VerifyConfig(Config):
    """Settings of `verify`."""

    panel: ClassVar[str] = "Gate"

    texts: int | None = Field(
        None, ge=1, description="held-out texts to compare; all of them by default"
    )
    tolerance: Annotated[str | None, TOLERANCES.validator()] = Field(
        None,
        description="float32, float16, bfloat16, float16-activations, bfloat16-activations, "
        "int8, int4, int3, int2 or served; by default the candidate's precision, or what the "
        "runtime computes floats in",
    )
    runtime: RuntimeName = Field(
        DEFAULT_RUNTIME, description=f"runtime of an onnx candidate: {', '.join(RUNTIMES)}"
    )
    seed: int = Field(0, ge=0, description="which texts are drawn, and in which order")


class Verification(Parity):
    """Findings of the gate, and where they were made."""

    environment: Environment | None = Field(None, description="None in older results")


def verify(
    reference: Artifact,
    candidate: Artifact,
    task: Task,
    config: VerifyConfig,
    graph_failures: GraphFailures,
) -> Verification:
    """Compare two artifacts; a failure is in the result, not raised.

    Only the candidate runs in `config.runtime`: so a runtime can be checked against another.
    """
    from bertender.models.classifier import open_classifier

    check_installed(config.runtime)
    check_used([candidate], config.runtime)
    task.check_problem(reference)
    _check_same_problem(reference, candidate)
    examples, truth = labelled_sample(task, task.dev, config.texts or len(task.dev), config.seed)
    usual = tolerance_in(config.runtime, candidate.card.precision)
    tolerance = TOLERANCES[config.tolerance or usual]
    parity = check_parity(
        open_classifier(reference),
        open_classifier(candidate, runtime=config.runtime),
        examples,
        tolerance,
        arrangement=Arrangement(seed=config.seed),
        # texts of another task are texts, too, but their labels are not these models'
        truth=truth if task.labels == reference.card.task.labels else None,
    )
    in_graphs = graph_failures(reference, candidate, task)
    compared = in_graphs is not None if candidate.card.stage == "quantize" else None
    failures = (*parity.failures, *(in_graphs or ()))
    update = {
        "runtime": runtime_of(candidate, config.runtime),
        "failures": failures,
        "graphs_compared": compared,
    }
    return Verification(**{**dict(parity), **update}, environment=environment())


def _check_same_problem(reference: Artifact, candidate: Artifact) -> None:
    """Raise ConfigError for models of two problem types, whose outputs cannot be compared."""
    ours, theirs = (each.card.task.problem_type for each in (reference, candidate))
    if ours != theirs:
        raise ConfigError(
            f"{reference.path} was made for {ours!r} and {candidate.path} for {theirs!r}, so that "
            "their outputs cannot be compared. Give two artifacts of one task."
        )
