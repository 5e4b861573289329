"""The gate for artifacts: new graphs must agree with their source; `verify` compares two artifacts.

Functions that open models import PyTorch where they run, so that settings load without it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from bertender.comparison.accuracy import check_labels_fit
from bertender.core.artifact import Artifact, Draft, new_artifact, write_golden
from bertender.core.config import Config
from bertender.core.errors import ConfigError, ModelError
from bertender.core.machine import Environment, environment
from bertender.gate.cases import inputs_comparable
from bertender.gate.config import GateConfig
from bertender.gate.golden import golden_examples, golden_texts
from bertender.gate.judge import (
    TOLERANCES,
    Parity,
    check_parity,
    labelled_sample,
    require_parity,
)
from bertender.models.classifier import Classifier
from bertender.models.runtimes import (
    DEFAULT_RUNTIME,
    RUNTIMES,
    RuntimeName,
    check_installed,
    check_used,
    runtime_of,
    tolerance_in,
)
from bertender.tasks.task import Task, same_labels

GraphFailures: TypeAlias = Callable[[Artifact, Artifact, Task], tuple[str, ...] | None]
"""(reference, candidate, task) -> faults in the candidate's graph; None if there are no two graphs
to compare"""


def open_source(source: Artifact, task: Task) -> Classifier:
    """Open the source that a new graph must agree with.

    Raises:
        ConfigError: the task is of another problem type, or its labels look swapped.
    """
    from bertender.models.classifier import open_classifier

    task.check_problem(source)
    opened = open_classifier(source)
    check_labels_fit(opened, task)
    return opened


def new_graph(
    source: Artifact, stage: str, config: GateConfig, out: Path, precision: str
) -> AbstractContextManager[Draft]:
    """Write an onnx artifact of `source` at `out` when the block ends without an error."""
    return new_artifact(
        out,
        kind="onnx",
        family=source.card.family,
        task=source.card.task,
        stage=stage,
        config=config,
        seed=config.seed,
        precision=precision,
        max_length=source.card.max_length,
        parent=source,
    )


def require_agreement(
    draft: Draft,
    source: Artifact,
    opened: Classifier,
    task: Task,
    config: GateConfig,
    *,
    name: str,
    precision: str,
    runtime: str = DEFAULT_RUNTIME,
    reference: Classifier | None = None,
    tolerance: str | None = None,
) -> None:
    """Check that the graph of a draft agrees with its source; store golden texts next to it.

    Args:
        draft: has model.onnx, config.json and the tokenizer; the results join its findings.
        source: source of the graph.
        opened: the source as a classifier, from `open_source`.
        task: task whose validation texts (or held-out texts) both classify.
        config: config of the stage.
        name: name of the artifact.
        precision: precision of the graph, a row of TOLERANCES.
        runtime: the row of RUNTIMES whose logits must agree.
        reference: model that the graph must agree with, if that is not the source.
        tolerance: row of TOLERANCES, if that is not the precision's own.

    Raises:
        ModelError: the tokenizers of the graph and its source differ.
        ParityError: the outputs are too far apart.
    """
    from bertender.models.classifier import onnx_classifier

    candidate = onnx_classifier(
        draft.directory,
        draft.task,
        name=name,
        parameters=opened.parameters,
        runtime=runtime,
    )
    if not inputs_comparable(opened, candidate):
        raise ModelError(
            f"the tokenizer written with {candidate.name} has another vocabulary than that of "
            f"{opened.name}, whose files were copied. Build {opened.name} again."
        )
    # a scheme may be chosen by whether it passes, so these must not be the texts of the score
    examples, truth = labelled_sample(task, task.choices, config.parity_texts, config.seed)
    bounds = TOLERANCES[tolerance or precision]
    parity = check_parity(
        reference or opened, candidate, examples, bounds, seed=config.seed, truth=truth
    )
    require_parity(parity)
    proven = {"parameters": opened.parameters, "parity": parity.summary()}
    draft.findings = draft.findings.model_copy(update=proven)
    asked = task.problem.asked(examples)
    if chosen := golden_examples(asked, config.golden_texts, config.seed):
        # another machine may round as differently as the precision allows
        golden = golden_texts(
            candidate, chosen, runtime=runtime, tolerance=precision, parity=parity
        )
        write_golden(golden, draft.directory)


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
    """Findings of the gate, and their conditions."""

    environment: Environment


def verify(
    reference: Artifact,
    candidate: Artifact,
    task: Task,
    config: VerifyConfig,
    graph_failures: GraphFailures,
) -> Verification:
    """Compare two artifacts; a failure is in the result, not raised.

    Only the candidate runs in `config.runtime`, so a runtime can be checked against another. Labels
    are matched by name (`same_labels`), so that their order does not matter.
    """
    from bertender.models.classifier import in_label_order, open_classifier

    check_installed(config.runtime)
    check_used([candidate], config.runtime)
    task.check_problem(reference)
    ours, theirs = (each.card.task.problem_type for each in (reference, candidate))
    if ours != theirs:
        raise ConfigError(
            f"{reference.place} was made for {ours!r} and {candidate.place} for {theirs!r}, so "
            "that their outputs cannot be compared. Give two artifacts of one task."
        )
    reference, candidate = (each.of_task(task.record()) for each in (reference, candidate))
    examples, truth = labelled_sample(task, task.dev, config.texts or len(task.dev), config.seed)
    usual = tolerance_in(config.runtime, candidate.card.precision)
    tolerance = TOLERANCES[config.tolerance or usual]
    expected = open_classifier(reference)
    actual = open_classifier(candidate, runtime=config.runtime)
    if same_labels(actual.labels, expected.labels, task.problem):
        actual = in_label_order(actual, expected.labels)
    parity = check_parity(
        expected,
        actual,
        examples,
        tolerance,
        seed=config.seed,
        # texts of another task serve too, but their labels are not these models'
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
