"""A row of FAMILIES: where the parts of an encoder sit in an architecture of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PretrainedConfig, PreTrainedModel

from bertender.models.attention_heads import Pruning
from bertender.models.sublayers import FeedForward, Projections, module_weights

__all__ = [
    "Arguments",
    "Family",
    "Fusion",
    "LanguageHead",
    "Norms",
    "Place",
    "never",
    "scaled_scores",
]


def _zero(config: PretrainedConfig) -> int:
    return 0


def never(config: PretrainedConfig) -> bool:
    """Return False of every model."""
    return False


def _no_settings(config: PretrainedConfig, layers: Sequence[int]) -> Mapping[str, Any] | None:
    return {}


def _as_chosen(config: PretrainedConfig, layers: Sequence[int]) -> tuple[int, ...]:
    return tuple(layers)


def _each(base: nn.Module, path: str) -> list[nn.Module]:
    layers = base.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    return list(layers)


Arguments = Mapping[str, Any]
"""Arguments of a call of a self-attention module, by the names of its forward."""


def scaled_scores(
    attention: nn.Module, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Query times key over the root of the head's width: (batch, heads, seq, seq)."""
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


@dataclass(frozen=True)
class Place:
    """States on their way through a layer: what a module of it reads, or what it writes."""

    path: str
    """Relative to the layer; the empty one is the layer itself."""
    written: bool = False

    def listen(self, layer: nn.Module, hear: Callable[[torch.Tensor], None]) -> RemovableHandle:
        """Hook a layer: `hear` gets the states in every run."""
        module = layer.get_submodule(self.path)
        if self.written:
            return module.register_forward_hook(lambda _, inputs, output: hear(_states(output)))
        return module.register_forward_pre_hook(lambda _, inputs: hear(_states(inputs)))


def _states(values: Any) -> torch.Tensor:
    """Return the first of what a module takes or returns, which is the states."""
    states: torch.Tensor = values[0] if isinstance(values, tuple) else values
    return states


@dataclass(frozen=True)
class Norms:
    """The two layer norms of a layer, and where its parts are added to their shortcuts."""

    attention: str
    feed_forward: str
    attention_sum: Place
    """The sum of attention and its shortcut."""
    feed_forward_sum: Place
    attention_end: Place
    """The states after all of attention."""

    @classmethod
    def after(cls, attention: str, feed_forward: str) -> Norms:
        """Return norms that read the sums, as BERT's."""
        sums = Place(attention), Place(feed_forward)
        return cls(attention, feed_forward, *sums, Place(attention, written=True))

    @classmethod
    def before(cls, attention: str, feed_forward: str, attention_module: str) -> Norms:
        """Return norms that read what a part reads, inside of its shortcut."""
        sums = Place(feed_forward), Place("", written=True)
        return cls(attention, feed_forward, *sums, Place(attention_module, written=True))


@dataclass(frozen=True)
class LanguageHead:
    """Where the parts of a masked-language head sit in a model that has one.

    Its decoder is the table of word embeddings.
    """

    parts: tuple[str, ...]
    """The layers before the decoder: a transform and a norm, in this order."""
    bias: str
    """The parameter that is added to the score of each word."""


def _as_it_is(model: PreTrainedModel) -> None:
    return None


@dataclass(frozen=True)
class Fusion:
    """Whether attention in the graphs of an architecture becomes one operator."""

    obstacle: str = ""
    """Why none can; empty where it can."""
    prepare: Callable[[PreTrainedModel], None] = _as_it_is
    """Brings a model, before its graph is written, to a form whose pattern is known."""

    @property
    def obstacle_in_a_plain_export(self) -> str:
        """Why none becomes one in a graph that was written as it is; empty where one does."""
        prepared = self.prepare is not _as_it_is
        return self.obstacle or ("its plain export has another pattern" if prepared else "")


@dataclass(frozen=True)
class Family:
    """The map of one architecture.

    All paths are relative to the base model (`model.base_model`), those of a layer's parts to the
    layer.
    """

    layers: str
    word_embeddings: str
    position_embeddings: str | None
    embedding_norm: str
    token_type_embeddings: str | None
    attention: str
    """The module that turns queries, keys and values into contexts."""
    projections: Projections
    feed_forward: FeedForward
    norms: Norms
    language_head: LanguageHead
    first_position: Callable[[PretrainedConfig], int] = _zero
    """Row of the position table that the first token reads."""
    relative_positions: bool = False
    """Attention adds a learned bias by distance, which absolute position embeddings do not hold."""
    plain_layers: bool = True
    """Layers and embeddings are BERT's under other names; another class can take their weights."""
    shorter_copies: bool = True
    """A student of the same class may start from some of the layers."""
    settings_of_layers: Callable[[PretrainedConfig, Sequence[int]], Mapping[str, Any] | None] = (
        _no_settings
    )
    """(config, layers from 0) -> settings under which a model of these layers alone computes each
    of them as the whole model does; None where its class cannot."""
    nearest_layers: Callable[[PretrainedConfig, Sequence[int]], tuple[int, ...]] = _as_chosen
    """(config, layers from 0) -> as many that have `settings_of_layers`, near to these."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Settings that a model is opened with, so that hooks see batches of padded texts."""
    pools_all_tokens: Callable[[PretrainedConfig], bool] = never
    """Return whether a classifier of texts reads all tokens of the last layer, not the first."""
    reads_neighbours: Callable[[PretrainedConfig], bool] = never
    """Return whether a token's embedding is made of its neighbours' too, padding among them."""
    layer_list: Callable[[nn.Module, str], list[nn.Module]] = _each
    """(base model, `layers`) -> the layers in the order they run; a shared one comes repeatedly."""
    scores: Callable[[nn.Module, Arguments, torch.Tensor, torch.Tensor], torch.Tensor] = (
        scaled_scores
    )
    """(attention module, its arguments, query, key) -> attention scores before mask and softmax."""
    fusion: Fusion = Fusion()
    """How ONNX Runtime can run its attention as one operator."""
    pruning: Pruning | None = None
    """How layers are cut; None where they cannot be."""

    def layer_weights(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """Return views of all weights of a layer, by names that every family shares."""
        return {
            **{f"attention.{name}": each for name, each in self.projections.weights(layer).items()},
            **module_weights(layer, self.norms.attention, "attention_norm"),
            **{f"ffn.{name}": each for name, each in self.feed_forward.weights(layer).items()},
            **module_weights(layer, self.norms.feed_forward, "ffn_norm"),
        }
