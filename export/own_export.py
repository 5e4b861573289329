"""Writing the graphs of OWN_MODELS, whose types Optimum does not know."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from bertender.models.families import family_name
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.models.own_places import OWN_PLACES
from bertender.models.pruned import PRUNABLE
from export.optimum_export import write_by_optimum

__all__ = ["OWN_WRITERS", "GraphWriter", "write_as_its_origin", "write_traced"]

LOWEST_OPSET = 14
TRACED_TOKENS = 9

GraphWriter = Callable[[str, PreTrainedModel, Path, int | None, Sequence[str]], None]
"""(the exporter's name of the task, model, directory, opset, token columns that the graph reads)
writes model.onnx and config.json; without an opset the lowest."""


def _giving_logits(model: PreTrainedModel, names: Sequence[str]) -> PreTrainedModel:
    """Return the model as a function of its token columns.

    It is no module around the model, whose name would stand before those of all nodes and weights:
    schemes that train find the model's parts by them.
    """
    traced, whole = copy.copy(model), type(model).forward

    def forward(*columns: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = whole(traced, **dict(zip(names, columns, strict=True))).logits
        return logits

    traced.forward = forward
    return traced


def write_traced(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    """Write the graph of one run over a text, with batch and length left open.

    The model must do the same whatever the values of its tokens are; the parity gate, which runs
    other texts than the traced one, is the check that counts.
    """
    tokens = {0: "batch", 1: "seq"}
    torch.onnx.export(
        _giving_logits(model.eval(), names),
        tuple(torch.ones(1, TRACED_TOKENS, dtype=torch.long) for _ in names),
        str(directory / ONNX_NAME),
        input_names=names,
        output_names=["logits"],
        dynamic_axes={**dict.fromkeys(names, tokens), "logits": {0: "batch"}},
        opset_version=opset or LOWEST_OPSET,
        dynamo=False,  # the exporter that Optimum takes for all other models
    )
    model.config.save_pretrained(directory)


def write_as_its_origin(
    onnx_task: str, model: PreTrainedModel, directory: Path, opset: int | None, names: Sequence[str]
) -> None:
    """Write the graph of a pruned model as Optimum writes those of its origin."""
    row = PRUNABLE[family_name(model.config)]
    plain, plain.config = copy.copy(model), copy.copy(model.config)
    # Optimum asks a model's class which library it is of
    plain.__class__, _ = row.classes_of(model)
    plain.config.export_model_type = model.config.pruned_from
    write_by_optimum(onnx_task, plain, directory, opset, names)
    model.config.save_pretrained(directory)


OWN_WRITERS: Mapping[str, GraphWriter] = {
    **dict.fromkeys(OWN_PLACES, write_traced),
    **{row.config.model_type: write_as_its_origin for row in PRUNABLE.values()},
}
"""model_type of a row of OWN_MODELS -> what writes its graph."""
