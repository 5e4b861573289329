"""Writing graphs by Optimum's exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from optimum.exporters.onnx import onnx_export_from_model
from optimum.exporters.tasks import TasksManager
from optimum.utils.input_generators import DummyTextInputGenerator
from transformers import PreTrainedModel

__all__ = ["write_by_optimum"]


class _OneTokenType(DummyTextInputGenerator):  # type: ignore[misc]
    """Texts to trace a model with whose table of token types has one row.

    Optimum's own have types of 0 and 1, whatever the model knows.
    """

    def generate(self, input_name: str, *arguments: Any, **settings: Any) -> torch.Tensor:
        generated: torch.Tensor = super().generate(input_name, *arguments, **settings)
        return generated.zero_() if input_name == "token_type_ids" else generated


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
        custom_onnx_configs=_settings_of_one_token_type(onnx_task, model),
    )


def _settings_of_one_token_type(onnx_task: str, model: PreTrainedModel) -> dict[str, Any] | None:
    """Return the exporter's settings for a model with one token type, None for any other."""
    if getattr(model.config, "type_vocab_size", None) != 1:
        return None
    model_type = getattr(model.config, "export_model_type", None) or model.config.model_type
    constructor = TasksManager.get_exporter_config_constructor(
        "onnx", task=onnx_task, model_type=model_type, library_name="transformers"
    )
    settings = constructor(model.config, task=onnx_task)
    settings.DUMMY_INPUT_GENERATOR_CLASSES = (_OneTokenType,)
    return {"model": settings}
