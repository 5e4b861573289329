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
from tests.toy_models import OWN_SHAPES, SHAPES, save_artifact, tiny_classifier

__all__ = ["PlainExport", "write_plain_export"]

MATRIX_FACTORS = {"electra": 2.0}
"""Random matrices are made larger where a toy of them hardly tells texts apart, so that rounding
would drown what little it says of them."""

LAYERS = 2
"""Of each export, but for ModernBERT, whose layers 2 and 3 are of another kind than the others.
Every gate takes as long again for as many layers again."""
OF_EACH_LAYER = ("head_numbers", "heads_kept", "neurons_kept")

PlainExport = Callable[[str], tuple[Artifact, Artifact]]
"""Architecture -> a torch artifact of random weights, and its export in float32."""


def write_plain_export(model_type: str, task: Task, folder: Path) -> None:
    """Write the two artifacts of an architecture into a folder."""
    model = tiny_classifier(model_type, pad_token_id=0, **_two_layers(model_type))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(MATRIX_FACTORS.get(model_type, 1.0))
    source = save_artifact(model, task, folder / "source")
    export(source, task, ExportConfig(), folder / "onnx")


def _two_layers(model_type: str) -> dict[str, Any]:
    """Return the settings that make a toy shallow."""
    shape = {**SHAPES, **OWN_SHAPES}.get(model_type, {})
    depth = "n_layers" if "n_layers" in shape else "num_hidden_layers"
    if depth not in shape or "modernbert" in model_type:
        return {}
    return {
        depth: LAYERS,
        **{name: shape[name][:LAYERS] for name in OF_EACH_LAYER if name in shape},
    }
