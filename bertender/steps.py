"""STEPS: what a recipe's step can be: every stage, and the measurements beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.atomic import replacing
from bertender.core.config import Config, Record
from bertender.core.predictor import open_classifier
from bertender.measure.compare import CompareConfig, compare
from bertender.measure.parity import (
    Parity,
    check_parity,
    find_tolerance,
    parity_sample,
    require_parity,
)
from bertender.stages import STAGES, Stage
from bertender.tasks.task import Task
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
    tolerance: str | None = Field(
        None,
        description="float32, float16, bfloat16, int8 or served; by default the candidate's "
        "precision",
    )
    seed: int = Field(0, ge=0, description="which texts are drawn, and in which order")


@dataclass(frozen=True)
class StepKind:
    """A row of STEPS."""

    config: type[Config]
    run: Callable[[Sequence[Artifact], Task, Any, Path], Any]
    sources: Sequence[int] = (1,)
    """From how many earlier steps it can start."""
    packages: tuple[str, ...] = ()
    """The packages whose code shapes the output, beside the shared ones."""
    suffix: str = ""
    """".json" where the output is a file; an artifact's directory has none."""
    takes_task: bool = True
    files: Callable[[Any], str] = lambda config: ""
    """config -> a digest of the files that it names"""
    siblings: Callable[[Any, Path], Sequence[Path]] = lambda config, out: ()
    """(config, out) -> the artifacts that it writes beside `out`"""
    require: Callable[[], Any] = lambda: None
    """Raises, before the first step runs, when this machine lacks what the step needs."""
    reusable: bool = True
    """False for a step that is a check of the moment, such as a server that must start."""

    def result(self, output: Path) -> dict[str, Any]:
        """Return what the step has made, as plain values."""
        if self.suffix:
            return dict(json.loads(output.read_text(encoding="utf-8")))
        card = Artifact.load(output, verify=False).card
        return card.model_dump(mode="json", include={"stage", "kind", "precision", "metrics"})


def verify(reference: Artifact, candidate: Artifact, task: Task, config: VerifyConfig) -> Parity:
    """Compare two artifacts' answers on a task's held-out texts."""
    examples = parity_sample(task.dev.examples, config.texts or len(task.dev), config.seed)
    tolerance = find_tolerance(config.tolerance or candidate.card.precision)
    return check_parity(
        open_classifier(reference),
        open_classifier(candidate),
        examples,
        tolerance,
        seed=config.seed,
    )


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


def _stage_step(stage: Stage) -> StepKind:
    package = stage.config.__module__.partition(".")[0]
    return StepKind(
        stage.config,
        stage.run,
        sources=stage.sources,
        packages=(package,),
        takes_task=stage.takes_task,
        files=stage.files,
        siblings=stage.siblings,
    )


STEPS: Mapping[str, StepKind] = {
    **{name: _stage_step(stage) for name, stage in STAGES.items()},
    "verify": StepKind(VerifyConfig, _verify, sources=(2,), suffix=".json"),
    "compare": StepKind(CompareConfig, _compare, sources=range(1, MOST_ROWS + 1), suffix=".json"),
    "endpoint": StepKind(
        EndpointConfig,
        _check_endpoint,
        packages=("serve",),
        suffix=".json",
        require=find_installation,
        reusable=False,
    ),
}
