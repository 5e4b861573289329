"""STEPS: what a recipe's step can be: every stage, and the measurements beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.atomic import replacing
from bertender.core.config import Config, Record
from bertender.measure.compare import CompareConfig, compare
from bertender.measure.parity import (
    TOLERANCES,
    Parity,
    check_parity,
    labelled_sample,
    require_parity,
)
from bertender.models.predictor import open_classifier
from bertender.pipeline.stages import STAGES
from bertender.pipeline.step_kinds import ONNX_CLASSIFIER, StepKind
from bertender.tasks.task import Task
from quantize.graph_check import float_twin, graph_failures
from serve.check import EndpointConfig, check_endpoint
from serve.installation import find_installation

__all__ = ["STEPS", "StepKind", "VerifyConfig", "save_result", "save_text", "verify"]


MOST_ROWS = 100
"""Of a comparison; more than anybody can read."""


class VerifyConfig(Config):
    """What the parity gate looks at."""

    texts: int | None = Field(
        None, ge=1, description="held-out texts to compare; all of them by default"
    )
    tolerance: Annotated[str | None, TOLERANCES.validator()] = Field(
        None,
        description="float32, float16, bfloat16, int8 or served; by default the candidate's "
        "precision",
    )
    seed: int = Field(0, ge=0, description="which texts are drawn, and in which order")


def verify(reference: Artifact, candidate: Artifact, task: Task, config: VerifyConfig) -> Parity:
    """Compare two artifacts on a task's held-out texts, and their graphs where both are there."""
    examples, truth = labelled_sample(task, task.dev, config.texts or len(task.dev), config.seed)
    tolerance = TOLERANCES[config.tolerance or candidate.card.precision]
    parity = check_parity(
        open_classifier(reference),
        open_classifier(candidate),
        examples,
        tolerance,
        seed=config.seed,
        # texts of another task are texts, too, but their labels are not these models'
        truth=truth if task.labels == reference.card.task.labels else None,
    )
    floats = float_twin(reference, candidate)
    compared = floats is not None if candidate.card.stage == "quantize" else None
    found = graph_failures(floats, candidate, task) if floats else ()
    failures = (*parity.failures, *found)
    return parity.model_copy(update={"failures": failures, "graphs_compared": compared})


def _verify(sources: Sequence[Artifact], task: Task, config: VerifyConfig, out: Path) -> None:
    parity = verify(sources[0], sources[1], task, config)
    require_parity(parity)
    save_result(parity, out)


def _compare(sources: Sequence[Artifact], task: Task, config: CompareConfig, out: Path) -> None:
    comparison = compare(sources, task, config)
    save_result(comparison, out)


def _check_endpoint(
    sources: Sequence[Artifact], task: Task, config: EndpointConfig, out: Path
) -> None:
    true_labels = [task.labels[label_id] for label_id in task.dev.label_ids]
    check = check_endpoint(sources[0], task.dev.examples, config, true_labels)
    save_result(check, out)


def save_result(result: Record, out: Path) -> None:
    """Write a measurement as JSON at `out`: all of it appears, or what was there stays."""
    save_text(result.model_dump_json(indent=1) + "\n", out)


def save_text(text: str, out: Path) -> None:
    """Write a file at `out`: all of it appears, or what was there stays."""
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


STEPS: Mapping[str, StepKind] = {
    **STAGES,
    "verify": StepKind(
        config=VerifyConfig,
        run=_verify,
        modules=(
            check_parity.__module__,
            open_classifier.__module__,
            graph_failures.__module__,
        ),
        sources=(2,),
        suffix=".json",
    ),
    "compare": StepKind(
        config=CompareConfig,
        run=_compare,
        modules=(compare.__module__,),
        sources=range(1, MOST_ROWS + 1),
        suffix=".json",
    ),
    "endpoint": StepKind(
        config=EndpointConfig,
        run=_check_endpoint,
        modules=(check_endpoint.__module__,),
        wants=lambda config, position: ONNX_CLASSIFIER,
        suffix=".json",
        require=find_installation,
        reusable=False,
    ),
}
