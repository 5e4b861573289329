"""Writing graphs by Optimum's exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optimum.exporters.onnx import onnx_export_from_model
from optimum.exporters.tasks import TasksManager
from transformers import PreTrainedModel

__all__ = ["write_by_optimum"]


def write_by_optimum(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None
) -> None:
    """Write model.onnx and config.json of a model whose architecture Optimum knows.

    Args:
        onnx_task: Optimum's name of the task.
        model: what to trace; `export_model_type` in its config stands for its type.
        directory: where to write.
        opset: None for the lowest.

    Raises:
        ValueError: Optimum does not know the architecture, or not for this task.
    """
    onnx_export_from_model(
        model,
        directory,
        task=onnx_task,
        do_validation=False,
        opset=opset,
        custom_onnx_configs=_without_token_types(onnx_task, model),
    )


def _without_token_types(onnx_task: str, model: PreTrainedModel) -> dict[str, Any] | None:
    """Return settings of Optimum whose graph reads no token types; None where there are several.

    Where a model has one, they are all 0: its tokenizer may give none, as MPNet's, whose students
    are BERTs. Optimum would trace it with types of 0 and 1, whatever the model knows.
    """
    if getattr(model.config, "type_vocab_size", None) != 1:
        return None
    model_type = getattr(model.config, "export_model_type", None) or model.config.model_type
    constructor = TasksManager.get_exporter_config_constructor(
        "onnx", task=onnx_task, model_type=model_type, library_name="transformers"
    )
    usual = constructor(model.config, task=onnx_task)
    read = {name: axes for name, axes in usual.inputs.items() if name != "token_type_ids"}
    kind = type("WithoutTokenTypes", (type(usual),), {"inputs": property(lambda _: read)})
    return {"model": kind(model.config, task=onnx_task)}
