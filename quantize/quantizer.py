"""Quantizing: an onnx artifact to a smaller one, behind the parity gate."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import Field

from bertender.core.artifact import Artifact, new_artifact
from bertender.core.config import Config
from bertender.core.errors import ModelError
from bertender.core.predictor import onnx_classifier, onnx_file, open_classifier
from bertender.measure.parity import check_parity, find_tolerance, parity_sample, require_parity
from bertender.tasks.task import Task
from quantize.schemes import scheme_named

__all__ = ["QuantizeConfig", "quantize"]


class QuantizeConfig(Config):
    """How to quantize."""

    scheme: str = Field("dynamic", description="how to choose scales; `dynamic` needs no data")
    parity_texts: int = Field(
        256, ge=1, description="held-out texts on which the answers must stay near"
    )
    seed: int = Field(0, ge=0, description="which texts the parity gate draws")


def quantize(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
    """Write an 8-bit model of `source`, and prove that it stays within the tolerance of int8.

    Raises:
        UnknownNameError: no such scheme.
        ModelError: the source is not a float32 onnx artifact.
        ParityError: the answers moved too far; nothing is written then.
    """
    scheme = scheme_named(config.scheme)
    refuse_unquantizable(source)
    reference = open_classifier(source)
    with new_artifact(
        out,
        kind="onnx",
        family=source.card.family,
        task=source.card.task,
        stage="quantize",
        config=config,
        seed=config.seed,
        precision=scheme.precision,
        parent=source,
    ) as draft:
        copy_companions(source, draft.directory)
        scheme.write(onnx_file(source), draft.directory / onnx_file(source).name)
        candidate = onnx_classifier(
            draft.directory, out.name, source.card.task.labels, reference.parameters
        )
        examples = parity_sample(task.dev.examples, config.parity_texts, config.seed)
        parity = check_parity(
            reference, candidate, examples, find_tolerance(scheme.precision), seed=config.seed
        )
        require_parity(parity)
        draft.metrics.update(parameters=reference.parameters, parity=parity.summary())
    return Artifact.load(out)


def refuse_unquantizable(source: Artifact) -> None:
    """Raise ModelError unless `source` is a float32 onnx artifact."""
    if source.card.kind != "onnx":
        raise ModelError(
            f"{source.path} is of kind {source.card.kind!r}; only onnx artifacts are quantized. "
            "Export it first: bertender export."
        )
    if source.card.precision != "float32":
        raise ModelError(
            f"{source.path} is {source.card.precision} already; give the float32 export it is from."
        )


def copy_companions(source: Artifact, directory: Path) -> None:
    """Copy everything but the graph and the card: config.json and the tokenizer."""
    for name in source.card.files:
        if name != onnx_file(source).name:
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path / name, target)
