"""Quantizations under way, for tests of what schemes do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import write_onnx
from quantize.context import QuantizationContext
from quantize.integers import AUTO, TARGETS, target_of
from quantize.quantize_config import QuantizeConfig

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

    return QuantizationContext(source, graph, work, task, config, TARGETS[target], folder, write)
