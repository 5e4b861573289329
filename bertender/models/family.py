"""Family: where the parts of an encoder sit in an architecture of transformers, as data.

Architectures differ in which matrices of a layer share a linear layer: queries, keys and values
have one each or one together, and a feed-forward part may have a gate next to its first matrix. A
`Sublayer` says so, so that reading, copying and selecting are the same for all of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import torch
import transformers
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError

BEFORE_5 = int(transformers.__version__.partition(".")[0]) < 5
"""Whether transformers is the major before 5, which has other parts and settings of models."""
UNKNOWN_LAYERS = "its layers are not known"
SHARED_LAYERS = "its layers share their weights"
"""Reasons why steps refuse an architecture."""


@dataclass(frozen=True)
class Stacked:
    """A linear layer of one matrix, or of several as high, one below another."""

    path: str
    """Relative to the layer of the encoder."""
    names: tuple[str, ...]
    """Of the matrices, from above."""


@dataclass(frozen=True)
class Sublayer:
    """Linear layers that read the hidden states, and the one that writes to the shortcut."""

    inputs: tuple[Stacked, ...]
    output: str
    """Its columns belong to the same heads or neurons as the rows of each matrix of `inputs`."""
    others: tuple[str, ...] = ()
    """More linear layers with such rows, in the layers that have them."""

    def listen(
        self, layer: nn.Module, hear: Callable[[str, torch.Tensor], None]
    ) -> list[RemovableHandle]:
        """Hook a layer: `hear` gets the name of each matrix and what it computes, in every run."""

        def hook_of(stacked: Stacked) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
                each = output.chunk(len(stacked.names), dim=-1)
                for name, states in zip(stacked.names, each, strict=True):
                    hear(name, states)

            return hook

        return [
            layer.get_submodule(each.path).register_forward_hook(hook_of(each))
            for each in self.inputs
        ]

    def weights(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """Return views of a layer's weights and biases by the names of the matrices."""
        views: dict[str, torch.Tensor] = {}
        for stacked in self.inputs:
            for kind, values in layer.get_submodule(stacked.path).named_parameters():
                parts = values.chunk(len(stacked.names))
                views |= {f"{n}.{kind}": part for n, part in zip(stacked.names, parts, strict=True)}
        modules = dict(layer.named_modules())
        for path in filter(modules.__contains__, self.others):
            views |= module_weights(layer, path, path)
        return views | module_weights(layer, self.output, "output")

    def channels(self, layer: nn.Module) -> int:
        """Return how many channels of heads, or neurons, a layer has."""
        return cast(nn.Linear, layer.get_submodule(self.output)).in_features

    def select(self, weights: dict[str, torch.Tensor], prefix: str, numbers: Sequence[int]) -> None:
        """Keep some channels of the layer at `prefix` of a state dict: rows, and output columns."""
        for path, count in self._rows.items():
            for kind in ("weight", "bias"):
                if (name := f"{prefix}.{path}.{kind}") in weights:
                    parts = weights[name].chunk(count)
                    weights[name] = torch.cat([part[list(numbers)] for part in parts])
        name = f"{prefix}.{self.output}.weight"
        weights[name] = weights[name][:, list(numbers)]

    def resize(self, layer: nn.Module, channels: int) -> None:
        """Put untrained linear layers with so many channels in place of a layer's own."""
        modules = dict(layer.named_modules())
        for path, count in self._rows.items():
            if path in modules:
                _resize(layer, path, outputs=count * channels)
        _resize(layer, self.output, inputs=channels)

    @property
    def _rows(self) -> Mapping[str, int]:
        """Path -> how many matrices it has one below another."""
        inputs = {each.path: len(each.names) for each in self.inputs}
        return inputs | dict.fromkeys(self.others, 1)


class Projections(Sublayer):
    """Queries, keys and values of all heads, and what writes the heads' contexts."""

    @classmethod
    def separate(
        cls, query: str, key: str, value: str, output: str, others: tuple[str, ...] = ()
    ) -> Self:
        """Return projections that have a linear layer each."""
        paths = {"query": query, "key": key, "value": value}
        return cls(tuple(Stacked(path, (name,)) for name, path in paths.items()), output, others)

    @classmethod
    def fused(cls, qkv: str, output: str) -> Self:
        """Return projections that are one linear layer."""
        return cls((Stacked(qkv, ("query", "key", "value")),), output)


class FeedForward(Sublayer):
    """The neurons of a layer, and what writes their activations."""

    @classmethod
    def plain(cls, inner: str, outer: str) -> Self:
        """Return a feed-forward part of two matrices with an activation between."""
        return cls((Stacked(inner, ("inner",)),), outer)

    @classmethod
    def gated(cls, inner_and_gate: str, outer: str) -> Self:
        """Return one whose activations are multiplied by a gate of the same linear layer."""
        return cls((Stacked(inner_and_gate, ("inner", "gate")),), outer)


def module_weights(layer: nn.Module, path: str, name: str) -> dict[str, torch.Tensor]:
    """Return the weights of a module of a layer under a name of their own."""
    module = layer.get_submodule(path)
    return {f"{name}.{kind}": values for kind, values in module.named_parameters()}


@torch.no_grad()
def copy_weights(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Copy weights of the same names; a bias that the source lacks becomes 0.

    Raises:
        ModelError: one of them has a weight that the other lacks.
    """
    biases = {name for name in target if name.endswith(".bias")}
    lacking = (source.keys() ^ target.keys()) - biases
    if lacking:
        raise ModelError(
            f"weights {', '.join(sorted(lacking))} are on one side of a copy alone. Copy between "
            "layers of the same matrices."
        )
    for name, values in target.items():
        values.copy_(source[name]) if name in source else values.zero_()


def _resize(layer: nn.Module, path: str, **sizes: int) -> None:
    """Put an untrained linear layer of another size in place of one."""
    old = cast(nn.Linear, layer.get_submodule(path))
    inputs, outputs = sizes.get("inputs", old.in_features), sizes.get("outputs", old.out_features)
    parent, _, name = path.rpartition(".")
    kind = {"device": old.weight.device, "dtype": old.weight.dtype}
    new = nn.Linear(inputs, outputs, bias=old.bias is not None, **kind)
    setattr(layer.get_submodule(parent), name, new)


def bert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the number of heads where BERT has it."""
    attention.num_attention_heads = len(heads)
    attention.all_head_size = len(heads) * size


def distilbert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the number of heads where DistilBERT has it."""
    attention.n_heads = len(heads)
    attention.dim = len(heads) * size


def mpnet_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """MPNet's bias by distance has all first heads, in every layer; each layer takes its own."""
    bert_heads(attention, heads, size)
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
class Pruning:
    """How the layers of an architecture come to differ in their heads and neurons."""

    set_heads: Callable[[nn.Module, Sequence[int], int], None] = bert_heads
    """(attention module, numbers of its heads before any cut, head_dim): sets which heads it has"""
    width: str = "intermediate_size"
    """The setting of the config that says how many neurons each layer has."""
    obstacle: str = ""
    """Why heads and neurons are not cut; empty where they are."""


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
    written: bool = False
    """That form has attention as an operator already, beside its products with weights: these are
    quantized one by one."""

    @property
    def prepares(self) -> bool:
        """Whether a model is brought to another form before its graph is written."""
        return self.prepare is not _as_it_is

    @property
    def obstacle_in_a_plain_export(self) -> str:
        """Why none becomes one in a graph that was written as it is; empty where one does."""
        return self.obstacle or ("its plain export has another pattern" if self.prepares else "")

    @property
    def obstacle_in_8_bits(self) -> str:
        """Why none is one operator in a graph of 8 bits; empty where one is."""
        return "" if self.written else self.obstacle_in_a_plain_export


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
    positions_from: int | None = 0
    """Row of the position table that the first token reads; None is the one after padding's."""
    relative_positions: bool = False
    """Attention adds a learned bias by distance, which absolute position embeddings do not hold."""
    plain_layers: bool = True
    """Layers and embeddings are BERT's under other names; another class can take their weights."""
    settings_of_layers: Callable[[PretrainedConfig, Sequence[int]], Mapping[str, Any] | None] = (
        _no_settings
    )
    """(config, layers from 0) -> settings under which a model of these layers alone computes each
    of them as the whole model does; None where its class cannot."""
    nearest_layers: Callable[[PretrainedConfig, Sequence[int]], tuple[int, ...]] = _as_chosen
    """(config, layers from 0) -> as many that have `settings_of_layers`, near to these."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Settings that a model is opened with, so that hooks see batches of padded texts."""
    layer_list: Callable[[nn.Module, str], list[nn.Module]] = _each
    """(base model, `layers`) -> the layers in the order they run; a shared one comes repeatedly."""
    scores: Callable[[nn.Module, Arguments, torch.Tensor, torch.Tensor], torch.Tensor] = (
        scaled_scores
    )
    """(attention module, its arguments, query, key) -> attention scores before mask and softmax."""
    fusion: Fusion = Fusion()
    """How ONNX Runtime can run its attention as one operator."""
    pruning: Pruning = Pruning()
    """How heads and neurons are cut."""

    @property
    def shared_layers(self) -> bool:
        """Whether layers are the same module, which runs repeatedly."""
        return self.layer_list is not _each

    def first_position(self, config: PretrainedConfig) -> int:
        """Return the row of the position table that the first token reads."""
        if self.positions_from is not None:
            return self.positions_from
        padding: int | None = config.pad_token_id
        assert padding is not None
        return padding + 1

    def layer_weights(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """Return views of all weights of a layer, by names that every family shares."""
        return {
            **{f"attention.{name}": each for name, each in self.projections.weights(layer).items()},
            **module_weights(layer, self.norms.attention, "attention_norm"),
            **{f"ffn.{name}": each for name, each in self.feed_forward.weights(layer).items()},
            **module_weights(layer, self.norms.feed_forward, "ffn_norm"),
        }
