"""Writing of onnx artifacts that agree with their source, and of no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bertender.comparison.accuracy import check_labels_fit
from bertender.core.artifact import Artifact, new_artifact, write_golden
from bertender.core.errors import ModelError
from bertender.core.findings import Findings
from bertender.gate.cases import Arrangement, inputs_comparable
from bertender.gate.config import GateConfig
from bertender.gate.golden import Conditions, golden_examples, golden_texts
from bertender.gate.judge import check_parity, labelled_sample, require_parity
from bertender.gate.tolerances import TOLERANCES
from bertender.models.classifier import Classifier, onnx_classifier, open_classifier
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.tasks.task import Task


@dataclass(frozen=True)
class Proof:
    """Report of a stage on the graph that it has written."""

    reference: Classifier | None = None
    """Reference that the graph must agree with; None for its source."""
    tolerance: str | None = None
    """The row of TOLERANCES; None for the one that its precision names."""
    findings: Findings = field(default_factory=Findings)
    """For the artifact's card, without parameters and parity."""


@dataclass(frozen=True)
class GraphWriter:
    """A stage's function that writes a graph."""

    stage: str
    precision: str
    """Of the new graph: the row of the gate's tolerances."""
    write: Callable[[Path], Proof]
    """Puts model.onnx, config.json and the tokenizer into a directory, and reports what the graph
    must agree with."""
    runtime: str = DEFAULT_RUNTIME
    """The row of RUNTIMES whose logits must agree."""


def write_proven(
    source: Artifact, task: Task, config: GateConfig, out: Path, writer: GraphWriter
) -> Artifact:
    """Write an onnx artifact of `source`, and prove that its outputs agree with those of `source`.

    Args:
        source: what the new model must agree with; it becomes the artifact's parent.
        task: both classify its texts to choose by: its selection, or its held-out texts.
        config: the stage's config.
        out: directory of the artifact.
        writer: of the stage.

    Raises:
        ConfigError: the task is of another problem type than the source.
        ParityError: the outputs are too far apart; `out` is not changed.
    """
    task.check_problem(source)
    opened = open_classifier(source)
    check_labels_fit(opened, task)
    with new_artifact(
        out,
        kind="onnx",
        family=source.card.family,
        task=source.card.task,
        stage=writer.stage,
        config=config,
        seed=config.seed,
        precision=writer.precision,
        max_length=source.card.max_length,
        parent=source,
    ) as draft:
        proof = writer.write(draft.directory)
        candidate = onnx_classifier(
            draft.directory,
            source.card.task,
            name=out.name,
            parameters=opened.parameters,
            runtime=writer.runtime,
        )
        _check_same_vocabulary(opened, candidate)
        # a scheme may be chosen by whether it passes, so that these are not the texts that score
        examples, truth = labelled_sample(task, task.choices, config.parity_texts, config.seed)
        tolerance = TOLERANCES[proof.tolerance or writer.precision]
        parity = check_parity(
            proof.reference or opened,
            candidate,
            examples,
            tolerance,
            arrangement=Arrangement(seed=config.seed),
            truth=truth,
        )
        require_parity(parity)
        measured = {"parameters": opened.parameters, "parity": parity.summary()}
        draft.findings = proof.findings.model_copy(update=measured)
        if chosen := golden_examples(examples, config.golden_texts, config.seed):
            # another machine rounds as far as the precision lets it
            conditions = Conditions(writer.runtime, writer.precision, parity)
            write_golden(golden_texts(candidate, chosen, conditions), draft.directory)
    return Artifact.load(out)


def _check_same_vocabulary(source: Classifier, written: Classifier) -> None:
    """Raise ModelError where a graph has another tokenizer than the model that it is of."""
    if not inputs_comparable(source, written):
        raise ModelError(
            f"the tokenizer written with {written.name} has another vocabulary than that of "
            f"{source.name}, whose files were copied. Build {source.name} again."
        )
