"""Cutting heads, neurons and layers out of a model: smaller matrices, and fewer layers."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES, encoder_layers, family_name, family_of
from bertender.models.family import SHARED_LAYERS, UNKNOWN_LAYERS
from bertender.models.own_models import (
    PRUNABLE,
    head_numbers_of,
    head_size,
    heads_of,
    neurons_of,
)
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.training.examples import TensorBatch
from bertender.training.heads import HEADS
from bertender.training.heads.head import Head

OF_A_CLASS = frozenset(
    {
        "architectures",
        "dtype",
        "head_numbers",
        "heads_kept",
        "model_type",
        "neurons_kept",
        "opens_with",
        "transformers_version",
    }
)
"""Settings of a config that are not copied to another class."""
BY_LAYER = ("head_numbers", "heads_kept", "neurons_kept")
"""Settings of pruned models with one value per layer."""


@dataclass(frozen=True)
class Remaining:
    """Remaining heads and neurons of each layer, by their numbers before the cut, from 0."""

    heads: tuple[tuple[int, ...], ...]
    neurons: tuple[tuple[int, ...], ...]


def cut(model: PreTrainedModel, remaining: Remaining) -> PreTrainedModel:
    """Return a model with only the remaining heads and neurons.

    Its outputs equal the model's with all other heads and neurons gated off. The class is the
    pruned form, or the original architecture where all heads stay and all layers keep equally many
    neurons. A pruned model can be cut again.

    Args:
        model: a classifier of texts or words of an architecture in PRUNABLE, or its pruned form.
        remaining: numbers of heads and neurons, a row per layer.

    Raises:
        ModelError: the architecture cannot be cut, or a layer would keep nothing, or `remaining`
            has numbers that the layer lacks.
    """
    check_prunable(model)
    _check_possible(model.config, remaining)
    family, size = family_of(model), head_size(model.config)
    weights = dict(model.state_dict())
    for number, (heads, neurons) in enumerate(zip(remaining.heads, remaining.neurons, strict=True)):
        prefix = f"{model.base_model_prefix}.{family.layers}.{number}"
        channels = [head * size + channel for head in sorted(heads) for channel in range(size)]
        family.projections.select(weights, prefix, channels)
        family.feed_forward.select(weights, prefix, sorted(neurons))
    return _with_weights(_new_model(model, remaining), weights, model)


def _with_weights(
    smaller: PreTrainedModel, weights: Mapping[str, torch.Tensor], model: PreTrainedModel
) -> PreTrainedModel:
    """Return a smaller model with these weights, in the precision and mode of the larger one."""
    smaller.to(dtype=model.dtype)  # type: ignore[call-arg]  # its own annotation names no arguments
    smaller.load_state_dict(weights)
    smaller.train(model.training)
    return smaller


def _new_model(model: PreTrainedModel, remaining: Remaining) -> PreTrainedModel:
    """Return a model of the remaining shape, with random weights."""
    config, row = model.config, PRUNABLE[family_name(model.config)]
    origin, pruned = row.classes_of(model)
    taken_over = {name: value for name, value in config.to_dict().items() if name not in OF_A_CLASS}
    settings = {**taken_over, **family_of(model).loading}
    heads = [len(layer) for layer in remaining.heads]
    neurons = [len(layer) for layer in remaining.neurons]
    if set(heads) == {config.num_attention_heads} and len(set(neurons)) == 1:
        own: Any = origin.config_class
        return origin(own(**{**settings, row.width: neurons[0]}))
    numbers = [  # of each layer's remaining heads in the unpruned model
        [before[head] for head in sorted(remain)]
        for before, remain in zip(head_numbers_of(config), remaining.heads, strict=True)
    ]
    uneven = row.config(**settings, heads_kept=heads, neurons_kept=neurons, head_numbers=numbers)
    return pruned(uneven)


def check_prunable(model: PreTrainedModel) -> None:
    """Raise ModelError unless the heads and neurons of an architecture can be cut."""
    name = family_name(model.config)
    if name not in PRUNABLE:
        obstacle = FAMILIES[name].pruning.obstacle if name in FAMILIES else UNKNOWN_LAYERS
        raise ModelError(
            f"a {name!r} model cannot be pruned in its layers: {obstacle}. "
            f"Architectures that can: {', '.join(sorted(PRUNABLE))}. Prune its vocabulary alone "
            "(vocab), or start from one of these."
        )


def check_layers_apart(model: PreTrainedModel) -> None:
    """Raise ModelError where an architecture's layers share their weights: none can go alone."""
    if family_of(model).shared_layers:
        raise ModelError(
            f"layers of a {family_name(model.config)!r} model cannot be dropped: "
            f"{SHARED_LAYERS}. Distil it into fewer layers (distill --layers)."
        )


def _check_possible(config: PretrainedConfig, remaining: Remaining) -> None:
    counted = {"heads": heads_of(config), "neurons": neurons_of(config)}
    for what, counts in counted.items():
        for layer, (numbers, count) in enumerate(
            zip(getattr(remaining, what), counts, strict=True)
        ):
            if not numbers or not set(numbers) <= set(range(count)):
                raise ModelError(
                    f"layer {layer} cannot keep {what} {list(numbers)} of its {count}: keep one at "
                    f"least, from 0 to {count - 1}, or drop the layer as a whole."
                )


def least_missed(
    model: PreTrainedModel,
    batches: Sequence[TensorBatch],
    count: int,
    head: Head = HEADS[SINGLE_LABEL.name],
) -> tuple[int, ...]:
    """Return the numbers of the remaining layers, from 0, when the least useful ones are dropped.

    Layers are dropped one by one: each time the layer without which the loss on some labelled
    texts is lowest. The method follows no paper; it is a plain baseline for cleverer ones.

    Args:
        model: a classifier of an architecture in FAMILIES, put into eval mode.
        batches: examples with `labels`, on the model's device.
        count: number of layers to drop, fewer than the model has.
        head: the classifier's head, for its loss on the labels.

    Raises:
        ModelError: no layer would be left.
    """
    check_layers_left(model, count)
    model.eval()
    every = range(len(encoder_layers(model)))
    left = list(every)
    for _ in range(count):
        losses = {}
        for layer in left:
            others = [each for each in left if each != layer]
            # where layers differ in kind, some cannot be dropped from a model of the same class
            if family_of(model).settings_of_layers(model.config, others) is not None:
                gone = [each for each in every if each not in others]
                losses[layer] = _loss_without(model, gone, batches, head)
        left.remove(min(losses, key=losses.__getitem__))
    return tuple(left)


def check_layers_left(model: PreTrainedModel, count: int) -> None:
    """Raise ModelError when no layer would be left."""
    depth = len(encoder_layers(model))
    if count >= depth:
        raise ModelError(
            f"layers={count}: the model has {depth}, and one must stay. Drop {depth - 1} at most."
        )


def without_layers(model: PreTrainedModel, remaining: Sequence[int]) -> PreTrainedModel:
    """Return a model of the same class with only these layers, in their order.

    Raises:
        ModelError: the class allows no such layers.
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
    return _with_weights(shorter, weights, model)


@torch.no_grad()
def _loss_without(
    model: PreTrainedModel, layers: Sequence[int], batches: Sequence[TensorBatch], head: Head
) -> float:
    """Return the loss of a model whose layers of these numbers are skipped."""

    def skip(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: Any) -> Any:
        return (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]

    every = encoder_layers(model)
    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(every[layer].register_forward_hook(skip))
        return sum(float(head.summed_loss(model, batch)) for batch in batches)
