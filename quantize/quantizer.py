"""Quantizing: an onnx artifact to a smaller one, behind the parity gate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.core.onnx_predictor import ONNX_NAME
from bertender.core.predictor import onnx_file, refuse_taggers
from bertender.measure.gate import GateConfig, write_proven
from bertender.tasks.task import Task
from quantize.schemes import scheme_named

__all__ = ["QuantizeConfig", "copy_companions", "quantize", "refuse_unquantizable"]


def _known(name: str) -> str:
    scheme_named(name)
    return name


class QuantizeConfig(GateConfig):
    """How to quantize."""

    scheme: Annotated[str, AfterValidator(_known)] = Field(
        "dynamic", description="how to choose scales; `dynamic` needs no data"
    )


def quantize(source: Artifact, task: Task, config: QuantizeConfig, out: Path) -> Artifact:
    """Write an 8-bit model of `source`, and prove that it stays within the tolerance of int8.

    Raises:
        UnknownNameError: no such scheme.
        ModelError: the source is not a float32 onnx artifact, or it is a tagger.
        ParityError: the answers moved too far; nothing is written then.
    """
    scheme = scheme_named(config.scheme)
    refuse_taggers(source)
    refuse_unquantizable(source)

    def write(directory: Path) -> None:
        copy_companions(source, directory)
        scheme.write(onnx_file(source), directory / ONNX_NAME)

    return write_proven(
        source, task, config, out, stage="quantize", precision=scheme.precision, write=write
    )


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
        if name != ONNX_NAME:
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path / name, target)
