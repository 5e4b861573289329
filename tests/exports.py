"""Plain exports of the toy architectures, each made once in a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from tests.toy_models import save_artifact, tiny_classifier

__all__ = ["PlainExport", "write_plain_export"]

MATRIX_FACTORS = {"electra": 2.0}
"""Random matrices are made larger where a toy of them hardly tells texts apart, so that rounding
would drown what little it says of them."""

PlainExport = Callable[[str], tuple[Artifact, Artifact]]
"""Architecture -> a torch artifact of random weights, and its export in float32."""


def write_plain_export(
    model_type: str, task: Task, folder: Path, *, parity_texts: int = 256, **changes: Any
) -> None:
    """Write the two artifacts of an architecture, with changes of its config, into a folder."""
    model = tiny_classifier(model_type, pad_token_id=0, **changes)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(MATRIX_FACTORS.get(model_type, 1.0))
    source = save_artifact(model, task, folder / "source")
    export(source, task, ExportConfig(parity_texts=parity_texts), folder / "onnx")
