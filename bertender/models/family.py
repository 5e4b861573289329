"""Family: paths to the parts of an encoder in an architecture of transformers, as data.

Architectures differ in which matrices of a layer share a linear layer: queries, keys and values
have separate layers or a common one, and a feed-forward part may have a gate next to its first
matrix. `Sublayer` describes this, so that reading, copying and selecting need one implementation.
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
"""Whether transformers is older than 5, where some parts and settings of models differ."""
UNKNOWN_LAYERS = "its layers are not known"
SHARED_LAYERS = "its layers share their weights"
"""Reasons why steps refuse an architecture."""


@dataclass(frozen=True)
class Stacked:
    """A linear layer of one matrix, or of several matrices of equal height, stacked."""

    path: str
    """Path relative to the encoder layer."""
    names: tuple[str, ...]
    """Names of the matrices, from the top."""


@dataclass(frozen=True)
class Sublayer:
    """Linear layers that read the hidden states, and the linear layer that writes the output."""

    inputs: tuple[Stacked, ...]
    output: str
    """Path of the output layer; its columns are the heads or neurons of the rows of `inputs`."""
    others: tuple[str, ...] = ()
    """Further linear layers with rows of these heads, where a layer has them."""

    def listen(
        self, layer: nn.Module, hear: Callable[[str, torch.Tensor], None]
    ) -> list[RemovableHandle]:
        """Hook a layer: `hear` gets the name and output of each matrix, in every forward pass."""

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
        """Return the number of channels of all heads, or of neurons, in a layer."""
        return cast(nn.Linear, layer.get_submodule(self.output)).in_features

    def select(self, weights: dict[str, torch.Tensor], prefix: str, numbers: Sequence[int]) -> None:
        """Keep some channels of a layer in a state dict: rows of inputs, and output columns."""
        for path, count in self._rows.items():
            for kind in ("weight", "bias"):
                if (name := f"{prefix}.{path}.{kind}") in weights:
                    parts = weights[name].chunk(count)
                    weights[name] = torch.cat([part[list(numbers)] for part in parts])
        name = f"{prefix}.{self.output}.weight"
        weights[name] = weights[name][:, list(numbers)]

    def resize(self, layer: nn.Module, channels: int) -> None:
        """Replace a layer's linear layers by untrained ones with `channels` channels."""
        modules = dict(layer.named_modules())
        for path, count in self._rows.items():
            if path in modules:
                _resize(layer, path, outputs=count * channels)
        _resize(layer, self.output, inputs=channels)

    @property
    def _rows(self) -> Mapping[str, int]:
        """Number of stacked matrices at each path."""
        inputs = {each.path: len(each.names) for each in self.inputs}
        return inputs | dict.fromkeys(self.others, 1)


class Projections(Sublayer):
    """Projections of all heads: queries, keys, values, and output."""

    @classmethod
    def separate(
        cls, query: str, key: str, value: str, output: str, others: tuple[str, ...] = ()
    ) -> Self:
        """Return projections with a linear layer each."""
        paths = {"query": query, "key": key, "value": value}
        return cls(tuple(Stacked(path, (name,)) for name, path in paths.items()), output, others)

    @classmethod
    def fused(cls, qkv: str, output: str) -> Self:
        """Return queries, keys and values in one linear layer."""
        return cls((Stacked(qkv, ("query", "key", "value")),), output)


class FeedForward(Sublayer):
    """The feed-forward part of a layer: its neurons, and their output layer."""

    @classmethod
    def plain(cls, inner: str, outer: str) -> Self:
        """Return a feed-forward part of two matrices with an activation between."""
        return cls((Stacked(inner, ("inner",)),), outer)

    @classmethod
    def gated(cls, inner_and_gate: str, outer: str) -> Self:
        """Return a feed-forward part with a gate in the first linear layer."""
        return cls((Stacked(inner_and_gate, ("inner", "gate")),), outer)


def module_weights(layer: nn.Module, path: str, name: str) -> dict[str, torch.Tensor]:
    """Return the weights of a module of a layer, with `name` as prefix."""
    module = layer.get_submodule(path)
    return {f"{name}.{kind}": values for kind, values in module.named_parameters()}


@torch.no_grad()
def copy_weights(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Copy weights of equal names; a bias that the source lacks becomes 0.

    Raises:
        ModelError: source or target has a weight that the other lacks.
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
    """Replace a linear layer by an untrained one of another size."""
    old = cast(nn.Linear, layer.get_submodule(path))
    inputs, outputs = sizes.get("inputs", old.in_features), sizes.get("outputs", old.out_features)
    parent, _, name = path.rpartition(".")
    kind = {"device": old.weight.device, "dtype": old.weight.dtype}
    new = nn.Linear(inputs, outputs, bias=old.bias is not None, **kind)
    setattr(layer.get_submodule(parent), name, new)


def bert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the number of heads of BERT's attention."""
    attention.num_attention_heads = len(heads)
    attention.all_head_size = len(heads) * size


def distilbert_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the number of heads of DistilBERT's attention."""
    attention.n_heads = len(heads)
    attention.dim = len(heads) * size


def mpnet_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    """Set the heads of MPNet's attention; each layer selects its heads of the shared bias."""
    bert_heads(attention, heads, size)
    attention.register_forward_pre_hook(partial(_select_bias, heads=list(heads)), with_kwargs=True)


def _select_bias(
    attention: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *, heads: list[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an attention call with the position bias (batch, heads, seq, seq) of
    only some heads, if there is a bias."""
    call = inspect.signature(attention.forward).bind(*arguments, **keywords)
    if (bias := call.arguments.get("position_bias")) is not None:
        call.arguments["position_bias"] = bias[:, heads]
    return call.args, call.kwargs


@dataclass(frozen=True)
class Pruning:
    """How an architecture can have different heads and neurons in each layer."""

    set_heads: Callable[[nn.Module, Sequence[int], int], None] = bert_heads
    """(attention module, its heads by their numbers before pruning, head_dim): sets the heads"""
    width: str = "intermediate_size"
    """Config setting for the number of neurons."""
    obstacle: str = ""
    """Why heads and neurons cannot be pruned; empty if they can."""


def _no_settings(config: PretrainedConfig, layers: Sequence[int]) -> Mapping[str, Any] | None:
    return {}


def _as_chosen(config: PretrainedConfig, layers: Sequence[int]) -> tuple[int, ...]:
    return tuple(layers)


def _each(base: nn.Module, path: str) -> list[nn.Module]:
    layers = base.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    return list(layers)


Arguments = Mapping[str, Any]
"""Arguments of a self-attention call, by name."""


def scaled_scores(
    attention: nn.Module, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Scaled dot products of queries and keys, (batch, heads, seq, seq)."""
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


@dataclass(frozen=True)
class Place:
    """A point in a layer at which states can be read: the input or the output of a module."""

    path: str
    """Path relative to the layer; empty for the layer itself."""
    written: bool = False

    def listen(self, layer: nn.Module, hear: Callable[[torch.Tensor], None]) -> RemovableHandle:
        """Hook a layer: `hear` gets the states in every forward pass."""
        module = layer.get_submodule(self.path)
        if self.written:
            return module.register_forward_hook(lambda _, inputs, output: hear(_states(output)))
        return module.register_forward_pre_hook(lambda _, inputs: hear(_states(inputs)))


def _states(values: Any) -> torch.Tensor:
    """Return the states, the first of a module's inputs or outputs."""
    states: torch.Tensor = values[0] if isinstance(values, tuple) else values
    return states


@dataclass(frozen=True)
class Norms:
    """The two layer norms of a layer, and the points at which shortcuts are added."""

    attention: str
    feed_forward: str
    attention_sum: Place
    """The sum of attention and its shortcut."""
    feed_forward_sum: Place
    attention_end: Place
    """The states after attention, with its norm."""

    @classmethod
    def after(cls, attention: str, feed_forward: str) -> Norms:
        """Return norms after the shortcut is added, like BERT's (post-norm)."""
        sums = Place(attention), Place(feed_forward)
        return cls(attention, feed_forward, *sums, Place(attention, written=True))

    @classmethod
    def before(cls, attention: str, feed_forward: str, attention_module: str) -> Norms:
        """Return norms before attention and feed-forward part (pre-norm)."""
        sums = Place(feed_forward), Place("", written=True)
        return cls(attention, feed_forward, *sums, Place(attention_module, written=True))


@dataclass(frozen=True)
class LanguageHead:
    """Paths to the parts of a masked-language head. Its decoder is the table of word embeddings."""

    parts: tuple[str, ...]
    """The layers before the decoder: a transform and a norm, in this order."""
    bias: str | None
    """The decoder's bias; None where it has none."""


def _as_it_is(model: PreTrainedModel) -> None:
    return None


@dataclass(frozen=True)
class Fusion:
    """Whether attention becomes one operator in ONNX graphs of an architecture."""

    obstacle: str = ""
    """Why attention cannot be fused; empty if it can."""
    prepare: Callable[[PreTrainedModel], None] = _as_it_is
    """Changes a model before export so that the optimizer knows its pattern."""
    written: bool = False
    """Whether `prepare` already writes attention as an operator, apart from its products with
    weights, which are then quantized one by one."""

    @property
    def prepares(self) -> bool:
        """Whether a model is changed before export."""
        return self.prepare is not _as_it_is

    @property
    def obstacle_in_a_plain_export(self) -> str:
        """Why attention cannot be fused in a graph of the unchanged model; empty if it can."""
        return self.obstacle or ("its plain export has another pattern" if self.prepares else "")

    @property
    def obstacle_in_8_bits(self) -> str:
        """Why attention is not one operator in an 8-bit graph; empty if it is."""
        return "" if self.written else self.obstacle_in_a_plain_export


@dataclass(frozen=True)
class Family:
    """Paths and properties of one architecture.

    Paths are relative to the base model (`model.base_model`); paths of a layer's parts are relative
    to the layer.
    """

    layers: str
    word_embeddings: str
    position_embeddings: str | None
    embedding_norm: str | None
    token_type_embeddings: str | None
    attention: str
    """The module that computes contexts from queries, keys and values."""
    projections: Projections
    feed_forward: FeedForward
    norms: Norms
    language_head: LanguageHead
    positions_from: int | None = 0
    """Row of the position table for the first token; None for the row after padding's."""
    relative_positions: bool = False
    """Whether attention adds a learned bias by distance."""
    plain_layers: bool = True
    """Whether layers and embeddings are BERT's under other names, so that other classes can copy
    the weights."""
    settings_of_layers: Callable[[PretrainedConfig, Sequence[int]], Mapping[str, Any] | None] = (
        _no_settings
    )
    """(config, layers from 0) -> settings with which a model of only these layers computes each of
    them as before; None where the class cannot."""
    nearest_layers: Callable[[PretrainedConfig, Sequence[int]], tuple[int, ...]] = _as_chosen
    """(config, layers from 0) -> the nearest layers that have `settings_of_layers`."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Settings to load a model with, so that hooks see padded batches."""
    layer_list: Callable[[nn.Module, str], list[nn.Module]] = _each
    """(base model, `layers`) -> the layers in the order they run; shared layers are repeated."""
    scores: Callable[[nn.Module, Arguments, torch.Tensor, torch.Tensor], torch.Tensor] = (
        scaled_scores
    )
    """(attention module, its arguments, query, key) -> attention scores before mask and softmax."""
    fixed_layers: str = ""
    """Why a layer cannot replace another one; empty if it can."""
    fusion: Fusion = Fusion()
    """How ONNX Runtime runs attention as one operator."""
    pruning: Pruning = Pruning()
    """How heads and neurons are pruned."""

    @property
    def shared_layers(self) -> bool:
        """Whether layers share a module, which runs repeatedly."""
        return self.layer_list is not _each

    def first_position(self, config: PretrainedConfig) -> int:
        """Return the row of the position table for the first token."""
        if self.positions_from is not None:
            return self.positions_from
        padding: int | None = config.pad_token_id
        if padding is None:
            raise ModelError(
                f"the config of a {config.model_type!r} model has no pad_token_id, from which its "
                "positions are counted. Set it to that of its tokenizer in a copy."
            )
        return padding + 1

    def layer_weights(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """Return views of all weights of a layer, by names common to all families."""
        return {
            **{f"attention.{name}": each for name, each in self.projections.weights(layer).items()},
            **module_weights(layer, self.norms.attention, "attention_norm"),
            **{f"ffn.{name}": each for name, each in self.feed_forward.weights(layer).items()},
            **module_weights(layer, self.norms.feed_forward, "ffn_norm"),
        }
