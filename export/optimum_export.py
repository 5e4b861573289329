"""Writing graphs by Optimum's exporter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimum.exporters.onnx import onnx_export_from_model
from optimum.exporters.tasks import TasksManager
from transformers import PreTrainedModel

__all__ = ["write_by_optimum"]

SEGMENTS = "token_type_ids"


def write_by_optimum(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    """Write model.onnx and config.json of a model whose architecture Optimum knows.

    Args:
        onnx_task: Optimum's name of the task.
        model: what to trace; `export_model_type` in its config stands for its type.
        directory: where to write.
        opset: None for the lowest.
        names: the token columns that the graph reads.

    Raises:
        ValueError: Optimum does not know the architecture, or not for this task.
    """
    onnx_export_from_model(
        model,
        directory,
        task=onnx_task,
        do_validation=False,
        opset=opset,
        custom_onnx_configs=_with_token_types(onnx_task, model, SEGMENTS in names),
    )


def _with_token_types(
    onnx_task: str, model: PreTrainedModel, wanted: bool
) -> dict[str, Any] | None:
    """Return settings of Optimum whose graph reads token types or not; None where it does so.

    Optimum goes by the architecture: a BERT's graph reads them, and a RoBERTa's does not. But a
    model may know one alone, whose tokenizer may give none (an MPNet's student is a BERT), and
    some RoBERTas have two.
    """
    model_type = getattr(model.config, "export_model_type", None) or model.config.model_type
    constructor = TasksManager.get_exporter_config_constructor(
        "onnx", task=onnx_task, model_type=model_type, library_name="transformers"
    )
    usual = constructor(model.config, task=onnx_task)
    if wanted is (SEGMENTS in usual.inputs):
        return None
    read = {name: axes for name, axes in usual.inputs.items() if name != SEGMENTS}
    read |= {SEGMENTS: read["input_ids"]} if wanted else {}
    kind = type("OfTheModel", (type(usual),), {"inputs": property(lambda _: read)})
    return {"model": kind(model.config, task=onnx_task)}
