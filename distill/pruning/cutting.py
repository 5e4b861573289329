"""Cutting heads and neurons out of a model: smaller matrices, the outputs of closed gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import family_name, family_of
from bertender.models.pruned import PRUNABLE, head_numbers_of, head_size, heads_of, neurons_of

__all__ = ["Remaining", "check_prunable", "cut", "filled"]


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
"""Settings of a config that do not go over to another class."""


@dataclass(frozen=True)
class Remaining:
    """Remaining heads and neurons of each layer, by their numbers before the cut, from 0."""

    heads: tuple[tuple[int, ...], ...]
    neurons: tuple[tuple[int, ...], ...]


def cut(model: PreTrainedModel, remaining: Remaining) -> PreTrainedModel:
    """Return a model that has these heads and neurons alone.

    Its outputs are the model's with all others gated off. It is of the pruned form, or, where
    all heads stay and all layers keep as many neurons, of the architecture's own. A model that was
    cut before may be cut again.

    Args:
        model: a classifier of texts or words of a row of PRUNABLE, or its pruned form.
        remaining: numbers of heads and neurons, a row each layer.

    Raises:
        ModelError: the architecture cannot be cut, or a layer would keep nothing, or keeps what
            is not there.
    """
    check_prunable(model)
    _check_possible(model.config, remaining)
    return filled(_untrained(model, remaining), _remaining_weights(model, remaining), model)


def filled(
    smaller: PreTrainedModel, weights: Mapping[str, torch.Tensor], model: PreTrainedModel
) -> PreTrainedModel:
    """Return a smaller model with these weights, in the precision and mode of the larger one."""
    smaller.to(dtype=model.dtype)  # type: ignore[call-arg]  # its own annotation names no arguments
    smaller.load_state_dict(weights)
    smaller.train(model.training)
    return smaller


def _untrained(model: PreTrainedModel, remaining: Remaining) -> PreTrainedModel:
    """Return a model of the remaining shape."""
    config, row = model.config, PRUNABLE[family_name(model.config)]
    origin, pruned = row.classes_of(model)
    settings = {**_of_any_class(config), **family_of(model).loading}
    heads, neurons = (
        [len(layer) for layer in layers] for layers in (remaining.heads, remaining.neurons)
    )
    if set(heads) == {config.num_attention_heads} and len(set(neurons)) == 1:
        own: Any = origin.config_class
        return origin(own(**{**settings, row.width: neurons[0]}))
    numbers = _head_numbers(config, remaining)
    uneven = row.config(**settings, heads_kept=heads, neurons_kept=neurons, head_numbers=numbers)
    return pruned(uneven)


def _of_any_class(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings of a config that another class takes too."""
    return {name: value for name, value in config.to_dict().items() if name not in OF_A_CLASS}


def _head_numbers(config: PretrainedConfig, remaining: Remaining) -> list[list[int]]:
    """Return the numbers that each layer's remaining heads had before any cut."""
    return [
        [before[head] for head in sorted(stay)]
        for before, stay in zip(head_numbers_of(config), remaining.heads, strict=True)
    ]


def check_prunable(model: PreTrainedModel) -> None:
    """Raise ModelError where it is not known how an architecture's layers are cut."""
    name = family_name(model.config)
    if name not in PRUNABLE:
        raise ModelError(
            f"a {name!r} model cannot be pruned in its layers. Architectures that can: "
            f"{', '.join(sorted(PRUNABLE))}. Prune its vocabulary alone (vocab), or start from one "
            "of these."
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


def _remaining_weights(model: PreTrainedModel, remaining: Remaining) -> dict[str, torch.Tensor]:
    """Return a model's weights without the rows and columns of cut heads and neurons."""
    family, size = family_of(model), head_size(model.config)
    weights = dict(model.state_dict())
    for number, (heads, neurons) in enumerate(zip(remaining.heads, remaining.neurons, strict=True)):
        prefix = f"{model.base_model_prefix}.{family.layers}.{number}"
        family.projections.select(weights, prefix, _channels(heads, size))
        family.feed_forward.select(weights, prefix, sorted(neurons))
    return weights


def _channels(heads: Sequence[int], size: int) -> list[int]:
    """Return the numbers of the channels of some heads, in order."""
    return [head * size + channel for head in sorted(heads) for channel in range(size)]
