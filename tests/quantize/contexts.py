"""Quantizations under way, for tests of what schemes do with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact
from bertender.models.classifier import onnx_file, open_classifier
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import write_onnx
from quantize.config import QuantizeConfig
from quantize.context import Batches, QuantizationContext, Written
from quantize.integers import AUTO, TARGETS, Range, target_of
from quantize.product_check import (
    NO_RANGES,
    ProductFindings,
    compare_products,
    find_parts,
    sample_rows,
)
from quantize.quantizer import WRITERS

HERE = target_of(AUTO)[0]
"""Row of TARGETS for this machine, whose integers every runtime adds exactly here."""
QAT_QUICK = {"epochs": 1, "batch_size": 16, "max_length": 32, "precision": "fp32"}
SETTINGS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"calibration_texts": 32},
    "mixed": {"max_drop": 100.0, "sensitivity": "hessian-trace", "sensitivity_texts": 8},
    "four-bit-embeddings": {"block_size": 16},
    "four-bit": {"max_drop": 100.0, "sensitivity": "hessian-trace", "sensitivity_texts": 8},
    "qat": {"calibration_texts": 32, **QAT_QUICK},
    "q-bert": {
        "calibration_texts": 32,
        "weight_bits": 2,
        "sensitive_bits": 4,
        "sensitivity": "hessian-trace",
        "sensitivity_texts": 8,
        "weight_groups": 4,
        **QAT_QUICK,
    },
}
"""What makes each scheme quick."""


def target_for(family: str) -> str:
    """Return the target of a family's graph that every x86 CPU opens.

    ALBERT's products share weights. Of more than 7 bits, ONNX Runtime cannot make them unsigned.
    """
    return HERE if family == "albert" else "vnni"


def config_of(scheme: str, **settings: Any) -> QuantizeConfig:
    return QuantizeConfig(scheme=scheme, **{"target": "vnni", **SETTINGS[scheme], **settings})


def context_of(
    source: Artifact, task: Task, folder: Path, target: str = "vnni", **settings: Any
) -> QuantizationContext:
    config = QuantizeConfig(target=target, **settings)
    work, graph = folder / "work", onnx_file(source)

    def write(trained: Artifact, directory: Path) -> None:
        write_onnx(trained, task, ExportConfig(), directory)

    paths, opened = (graph, work, folder), open_classifier(source)
    return QuantizationContext(source, task, config, TARGETS[target], *paths, opened, write)


def write(scheme: str, context: QuantizationContext, graph: Path) -> Written:
    """Write the graph of a scheme."""
    return WRITERS[scheme].write(context, graph)


def compared(
    floats: Path, graph: Path, texts: Batches, ranges: Mapping[str, Range] = NO_RANGES
) -> tuple[ProductFindings, ...]:
    """Compare the products of a quantized graph with the float ones."""
    groups = find_parts(floats, graph)
    return compare_products(groups, sample_rows(graph, groups, texts), ranges)
