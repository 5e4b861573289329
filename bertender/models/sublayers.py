"""The two parts of an encoder layer, attention's projections and the feed-forward part.

Architectures differ in which matrices share a linear layer: queries, keys and values have one each
or one together, and a feed-forward part may have a gate next to its first matrix. A `Sublayer` says
so as data, so that reading, copying and selecting are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from bertender.core.errors import ModelError

__all__ = ["FeedForward", "Projections", "Stacked", "Sublayer", "copy_weights", "module_weights"]


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
    lacking = {name for name in source.keys() ^ target.keys() if name not in _biases(target)}
    if lacking:
        raise ModelError(
            f"weights {', '.join(sorted(lacking))} are on one side of a copy alone. Copy between "
            "layers of the same matrices."
        )
    for name, values in target.items():
        values.copy_(source[name]) if name in source else values.zero_()


def _biases(weights: Mapping[str, torch.Tensor]) -> set[str]:
    return {name for name in weights if name.endswith(".bias")}


def _resize(layer: nn.Module, path: str, **sizes: int) -> None:
    """Put an untrained linear layer of another size in place of one."""
    old = cast(nn.Linear, layer.get_submodule(path))
    inputs, outputs = sizes.get("inputs", old.in_features), sizes.get("outputs", old.out_features)
    parent, _, name = path.rpartition(".")
    kind = {"device": old.weight.device, "dtype": old.weight.dtype}
    new = nn.Linear(inputs, outputs, bias=old.bias is not None, **kind)
    setattr(layer.get_submodule(parent), name, new)
