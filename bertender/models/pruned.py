"""PRUNABLE: architectures of transformers whose layers may differ in their heads and neurons.

transformers builds all layers of a model alike, each head as wide as the model over its number of
heads. A pruned model is neither, so it has a type of its own, whose config lists what each layer
has. Elsewhere loading stops at that type, and does not start with layers of another shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import nn
from transformers import (
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    BertConfig,
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

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
        size, row = head_size(config), PRUNABLE[config.pruned_from]
        layers = encoder_layers(self)
        remaining = zip(layers, head_numbers_of(config), neurons_of(config), strict=True)
        for layer, heads, neurons in remaining:
            self._keep_heads(layer, heads, size, row)
            self._keep_neurons(layer, neurons)

    def _keep_heads(self, layer: nn.Module, heads: Sequence[int], size: int, row: Prunable) -> None:
        for path in row.by_head(layer):
            _resize(layer, path, outputs=len(heads) * size)
        family = family_of(self)
        _resize(layer, family.attention_output, inputs=len(heads) * size)
        row.set_heads(layer.get_submodule(family.attention), heads, size)

    def _keep_neurons(self, layer: nn.Module, neurons: int) -> None:
        family = family_of(self)
        _resize(layer, family.ffn_in, outputs=neurons)
        _resize(layer, family.ffn_out, inputs=neurons)


def _resize(layer: nn.Module, path: str, **sizes: int) -> None:
    """Replace a linear layer by an untrained one of another size."""
    old = cast(nn.Linear, layer.get_submodule(path))
    inputs, outputs = sizes.get("inputs", old.in_features), sizes.get("outputs", old.out_features)
    parent, _, name = path.rpartition(".")
    new = nn.Linear(inputs, outputs, device=old.weight.device, dtype=old.weight.dtype)
    setattr(layer.get_submodule(parent), name, new)


def _bert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    attention.num_attention_heads = len(heads)
    attention.all_head_size = len(heads) * size


def _distilbert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    attention.n_heads = len(heads)
    attention.dim = len(heads) * size


def _mpnet_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """MPNet's bias by distance has all first heads, in every layer; each layer takes its own."""
    _bert_heads(attention, heads, size)
    attention.register_forward_pre_hook(partial(_of_heads, heads=list(heads)), with_kwargs=True)


def _of_heads(
    attention: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *, heads: list[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an attention with the position bias (batch, heads, seq, seq) of some
    heads; also where none is given."""
    call = inspect.signature(attention.forward).bind(*arguments, **keywords)
    if (bias := call.arguments.get("position_bias")) is not None:
        call.arguments["position_bias"] = bias[:, heads]
    return call.args, call.kwargs


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
    set_heads: Callable[[nn.Module, Sequence[int], int], None]
    """(attention module, numbers of its heads before any cut, head_dim) sets which it has"""
    width: str
    """The setting of the origin's config for the number of neurons of each layer."""
    positions: tuple[str, ...] = ()
    """Linear layers besides query, key and value whose outputs are by head, where there are."""

    def classes_of(
        self, model: PreTrainedModel
    ) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
        """Return the classes of a model with its head: the architecture's own, and the pruned."""
        tags = isinstance(model, self.tagger_origin)
        return (self.tagger_origin, self.tagger) if tags else (self.origin, self.classifier)

    def by_head(self, layer: nn.Module) -> list[str]:
        """Return the paths of an encoder layer's linear layers whose outputs are by head."""
        family = FAMILIES[self.config.pruned_from]
        there = {name for name, _ in layer.named_modules()}
        beside = (path for path in self.positions if path in there)
        return [family.query, family.key, family.value, *beside]


def _row(
    config: type[PretrainedConfig],
    classifier: type[PreTrainedModel],
    set_heads: Callable[[nn.Module, Sequence[int], int], None] = _bert_heads,
    width: str = "intermediate_size",
    positions: tuple[str, ...] = (),
) -> Prunable:
    """Derive the pruned form of an architecture."""
    own = {"model_type": f"bertender-pruned-{config.model_type}", "pruned_from": config.model_type}
    kind: Any = type(f"Pruned{config.__name__}", (_PrunedConfig, config), own)
    tagger: Any = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING[config]
    model, tags = (_pruned(origin, kind) for origin in (classifier, tagger))
    return Prunable(classifier, kind, model, tagger, tags, set_heads, width, positions)


def _pruned(origin: type[PreTrainedModel], config: type[_PrunedConfig]) -> type[PreTrainedModel]:
    return type(f"Pruned{origin.__name__}", (_PrunedModel, origin), {"config_class": config})


PRUNABLE: Mapping[str, Prunable] = {
    "bert": _row(BertConfig, BertForSequenceClassification),
    "camembert": _row(CamembertConfig, CamembertForSequenceClassification),
    "deberta-v2": _row(
        DebertaV2Config,
        DebertaV2ForSequenceClassification,
        positions=("attention.self.pos_key_proj", "attention.self.pos_query_proj"),
    ),
    "distilbert": _row(
        DistilBertConfig, DistilBertForSequenceClassification, _distilbert_heads, "hidden_dim"
    ),
    "electra": _row(ElectraConfig, ElectraForSequenceClassification),
    "mpnet": _row(MPNetConfig, MPNetForSequenceClassification, _mpnet_heads),
    "roberta": _row(RobertaConfig, RobertaForSequenceClassification),
    "xlm-roberta": _row(XLMRobertaConfig, XLMRobertaForSequenceClassification),
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
    width = getattr(config, row.width if row else "intermediate_size")
    return list(remaining or [width] * config.num_hidden_layers)
