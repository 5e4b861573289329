"""Writing the graphs of OWN_MODELS, which Optimum has no export for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bertender.core.bilstm import BiLstmConfig
from bertender.core.examples import input_names
from bertender.core.onnx_predictor import ONNX_NAME

__all__ = ["OWN_WRITERS", "GraphWriter", "write_traced"]

LOWEST_OPSET = 14
TRACED_TOKENS = 9

GraphWriter = Callable[[PreTrainedModel, Path, int | None], None]
"""(model, directory, opset) writes model.onnx and config.json; without an opset the lowest."""


class _Logits(torch.nn.Module):
    """A model as a function of its token columns."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.names = input_names(model)

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.names, columns, strict=True))).logits
        return logits


def write_traced(model: PreTrainedModel, directory: Path, opset: int | None) -> None:
    """Write the graph of one run over a text, with batch and length left open.

    The model must do the same whatever the values of its tokens are; the parity gate, which runs
    other texts than the traced one, is the check that counts.
    """
    traced = _Logits(model.eval())
    tokens = {0: "batch", 1: "seq"}
    torch.onnx.export(
        traced,
        tuple(torch.ones(1, TRACED_TOKENS, dtype=torch.long) for _ in traced.names),
        str(directory / ONNX_NAME),
        input_names=traced.names,
        output_names=["logits"],
        dynamic_axes={**dict.fromkeys(traced.names, tokens), "logits": {0: "batch"}},
        opset_version=opset or LOWEST_OPSET,
        dynamo=False,  # the exporter that Optimum takes for all other models
    )
    model.config.save_pretrained(directory)


OWN_WRITERS: Mapping[str, GraphWriter] = {BiLstmConfig.model_type: write_traced}
"""model_type of a row of OWN_MODELS -> what writes its graph."""
