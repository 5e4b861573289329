"""Layer pruning: the layers with the least effect on the loss are left out as a whole.

One after another: of those that are left, the layer goes without which the loss on some labelled
texts is lowest. No paper's in particular; it is the plainest control for cleverer ones.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import encoder_layers, family_of
from bertender.problems import SINGLE_LABEL
from bertender.training.examples import TensorBatch
from bertender.training.heads import HEADS, Head
from distill.pruning.cutting import filled

__all__ = ["check_layers_left", "least_missed", "without_layers"]

BY_LAYER = ("head_numbers", "heads_kept", "neurons_kept")
"""Settings of pruned models that have a value a layer."""


def least_missed(
    model: PreTrainedModel,
    batches: Sequence[TensorBatch],
    count: int,
    head: Head = HEADS[SINGLE_LABEL.name],
) -> tuple[int, ...]:
    """Return the layers that stay when some are dropped, from 0.

    Args:
        model: a classifier of a row of FAMILIES, put into eval mode.
        batches: examples with `labels`, where the model is.
        count: how many layers go, fewer than there are.
        head: the classifier's, whose loss with the labels is read.

    Raises:
        ModelError: no layer would be left.
    """
    check_layers_left(model, count)
    depth = len(encoder_layers(model))
    model.eval()
    gone: list[int] = []
    for _ in range(count):
        left = [layer for layer in range(depth) if _may_go(model, [*gone, layer])]
        losses = {layer: _loss_without(model, [*gone, layer], batches, head) for layer in left}
        gone.append(min(left, key=losses.__getitem__))
    return tuple(layer for layer in range(depth) if layer not in gone)


def check_layers_left(model: PreTrainedModel, count: int) -> None:
    """Raise ModelError when no layer would be left."""
    depth = len(encoder_layers(model))
    if count >= depth:
        raise ModelError(
            f"layers={count}: the model has {depth}, and one must stay. Drop {depth - 1} at most."
        )


def without_layers(model: PreTrainedModel, remaining: Sequence[int]) -> PreTrainedModel:
    """Return a model of the same class that has these layers alone, in their order.

    Raises:
        ModelError: the class cannot have them alone.
    """
    settings = family_of(model).settings_of_layers(model.config, remaining)
    if settings is None:
        raise ModelError(
            f"a {model.config.model_type!r} model of layers {list(remaining)} alone would compute "
            "them in another way than before. Leave others out."
        )
    config: Any = copy.deepcopy(model.config)
    config.update({**settings, "num_hidden_layers": len(remaining)})
    for name in BY_LAYER:
        if values := getattr(config, name, None):
            setattr(config, name, [values[layer] for layer in remaining])
    shorter: PreTrainedModel = type(model)(config)
    prefix = f"{model.base_model_prefix}.{family_of(model).layers}."
    numbers = {str(layer): str(place) for place, layer in enumerate(remaining)}
    weights = {}
    for name, weight in model.state_dict().items():
        match = re.match(rf"{re.escape(prefix)}(\d+)(\..*)", name)
        if match is None:
            weights[name] = weight
        elif match[1] in numbers:
            weights[f"{prefix}{numbers[match[1]]}{match[2]}"] = weight
    return filled(shorter, weights, model)


def _may_go(model: PreTrainedModel, gone: Sequence[int]) -> bool:
    """Return whether a model of the same class can do without some layers, which differ."""
    left = [layer for layer in range(len(encoder_layers(model))) if layer not in gone]
    settings = family_of(model).settings_of_layers(model.config, left)
    return len(set(gone)) == len(gone) and settings is not None


@torch.no_grad()
def _loss_without(
    model: PreTrainedModel, layers: Sequence[int], batches: Sequence[TensorBatch], head: Head
) -> float:
    total = 0.0
    with ExitStack() as skipped:
        for layer in layers:
            skipped.enter_context(_skipped(encoder_layers(model)[layer]))
        for batch in batches:
            total += float(head.summed_loss(model, batch))
    return total


@contextmanager
def _skipped(layer: nn.Module) -> Iterator[None]:
    """Let a layer return its input, inside the block."""

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: Any) -> Any:
        return (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]

    handle = layer.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
