"""EXPORT: a classifier as an ONNX graph."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.pipeline.products import TORCH_CLASSIFIER, Product, Want
from bertender.pipeline.stage import Inputs, Stage
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, check_architecture, export, write_onnx

__all__ = ["EXPORT"]


def _export(inputs: Inputs, config: ExportConfig, out: Path) -> Artifact:
    return export(inputs.sources[0], inputs.task, config, out)


def _write(source: Artifact, task: Task, directory: Path) -> None:
    """Write the graph of a torch artifact with the default settings."""
    write_onnx(source, task, ExportConfig(), directory)


def _wants(config: ExportConfig, position: int) -> Want:
    return replace(TORCH_CLASSIFIER, class_checks=(partial(check_architecture, config=config),))


EXPORT = Stage(
    name="export",
    config=ExportConfig,
    function=_export,
    provides={"write": _write},
    source="artifact",
    wants=_wants,
    model=lambda config, earlier: earlier.sources[0],
    makes=lambda config: Product(
        "export", "onnx", precision=config.precision, fused=config.optimize == "fused"
    ),
)
