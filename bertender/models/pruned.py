"""PRUNABLE: architectures of transformers whose layers may differ in their heads and neurons.

transformers builds all layers of a model alike, each head as wide as the model over its number of
heads. A pruned model is neither, so it has a type of its own, whose config lists what each layer
has. Elsewhere loading stops at that type, and does not start with layers of another shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

from bertender.models.attention_heads import Pruning
from bertender.models.families import FAMILIES, encoder_layers, family_name, family_of

__all__ = ["PRUNABLE", "Prunable", "head_numbers_of", "head_size", "heads_of", "neurons_of"]


class _PrunedConfig(PretrainedConfig):
    """The config of an architecture, with the remaining heads and neurons of each layer."""

    pruned_from: str

    def __init__(
        self,
        heads_kept: Sequence[int] | None = None,
        neurons_kept: Sequence[int] | None = None,
        head_numbers: Sequence[Sequence[int]] | None = None,
        **settings: Any,
    ) -> None:
        """Take how many heads and neurons each layer has, and which of its first heads they are.

        None is what all had before, or the first ones.
        """
        super().__init__(**settings)
        self.heads_kept = heads_kept and list(heads_kept)
        self.neurons_kept = neurons_kept and list(neurons_kept)
        self.head_numbers = head_numbers and [list(layer) for layer in head_numbers]
        self.opens_with = "bertender"


class _PrunedModel(PreTrainedModel):
    """A model of an architecture, built with the layers of its config."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        family, size = family_of(self), head_size(config)
        assert family.pruning is not None
        layers = encoder_layers(self)
        remaining = zip(layers, head_numbers_of(config), neurons_of(config), strict=True)
        for layer, heads, neurons in remaining:
            family.projections.resize(layer, len(heads) * size)
            family.pruning.set_heads(layer.get_submodule(family.attention), heads, size)
            family.feed_forward.resize(layer, neurons)


@dataclass(frozen=True)
class Prunable:
    """A row of PRUNABLE."""

    origin: type[PreTrainedModel]
    config: type[_PrunedConfig]
    classifier: type[PreTrainedModel]
    """The pruned form of the origin, by its config."""
    tagger_origin: type[PreTrainedModel]
    """The origin's class that labels words."""
    tagger: type[PreTrainedModel]
    """The pruned form of that."""
    width: str
    """The setting of the origin's config for the number of neurons of each layer."""

    def classes_of(
        self, model: PreTrainedModel
    ) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
        """Return the classes of a model with its head: the architecture's own, and the pruned."""
        tags = isinstance(model, self.tagger_origin)
        return (self.tagger_origin, self.tagger) if tags else (self.origin, self.classifier)


def _row(name: str, pruning: Pruning) -> Prunable:
    """Derive the pruned form of an architecture."""
    config = CONFIG_MAPPING[name]
    own = {"model_type": f"bertender-pruned-{name}", "pruned_from": name}
    kind: Any = type(f"Pruned{config.__name__}", (_PrunedConfig, config), own)
    origins: list[Any] = [
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config],
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[config],
    ]
    classifier, tagger = (_pruned(origin, kind) for origin in origins)
    return Prunable(origins[0], kind, classifier, origins[1], tagger, pruning.width)


def _pruned(origin: type[PreTrainedModel], config: type[_PrunedConfig]) -> type[PreTrainedModel]:
    return type(f"Pruned{origin.__name__}", (_PrunedModel, origin), {"config_class": config})


PRUNABLE: Mapping[str, Prunable] = {
    name: _row(name, family.pruning) for name, family in FAMILIES.items() if family.pruning
}
"""The pruned form of an architecture, by the model_type that it is made of."""


def head_size(config: PretrainedConfig) -> int:
    """Return the width of a head, which pruning leaves as it is."""
    return int(config.hidden_size // config.num_attention_heads)


def heads_of(config: PretrainedConfig) -> list[int]:
    """Return the number of heads of each layer."""
    remaining = getattr(config, "heads_kept", None)
    return list(remaining or [config.num_attention_heads] * config.num_hidden_layers)


def head_numbers_of(config: PretrainedConfig) -> list[list[int]]:
    """Return the heads of each layer by their numbers before any cut."""
    numbers = getattr(config, "head_numbers", None)
    return numbers or [list(range(count)) for count in heads_of(config)]


def neurons_of(config: PretrainedConfig) -> list[int]:
    """Return the number of neurons of each layer's feed-forward part."""
    remaining = getattr(config, "neurons_kept", None)
    row = PRUNABLE.get(family_name(config))
    width = getattr(config, row.width if row else "intermediate_size", 0)  # 0 without layers
    return list(remaining or [width] * config.num_hidden_layers)
