"""What a loss may read from a model on one batch: logits, hidden states, and parts of attention.

Queries, keys, values and attention scores are read with hooks, through the paths of FAMILIES, so
that no model code is copied and every family gives them. Scores are those before mask and
softmax: `output_attentions` of transformers gives probabilities, which have lost their scale.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.examples import TensorBatch, model_inputs
from bertender.core.families import Family, encoder_layers, family_of

__all__ = ["ATTENTION_SIGNALS", "Signal", "Signals", "read_signals"]

Signal = Literal["logits", "hidden_states", "queries", "keys", "values", "attention_scores"]

ATTENTION_SIGNALS: frozenset[Signal] = frozenset({"queries", "keys", "values", "attention_scores"})
"""Those that hooks read; they ask for a row in FAMILIES."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Signals:
    """A model's answers on a batch; empty where a signal was not asked for."""

    logits: torch.Tensor
    """(batch, labels), of a tagger (batch, seq, labels), of a language model (batch, seq, vocab);
    empty of an encoder alone."""
    hidden_states: Tensors = ()
    """Embeddings and each layer's output, (batch, seq, hidden)."""
    queries: Tensors = ()
    """Of each layer, (batch, heads, seq, head_dim)."""
    keys: Tensors = ()
    """Of each layer, (batch, heads, seq, head_dim)."""
    values: Tensors = ()
    """Of each layer, (batch, heads, seq, head_dim)."""
    attention_scores: Tensors = ()
    """Of each layer before mask and softmax, (batch, heads, seq, seq)."""


def read_signals(model: PreTrainedModel, batch: TensorBatch, wanted: frozenset[Signal]) -> Signals:
    """Run the model on a batch and read the wanted signals; the logits are always there.

    Raises:
        ModelError: parts of attention are wanted of a model that is no row of FAMILIES.
    """
    hidden = "hidden_states" in wanted
    if not wanted & ATTENTION_SIGNALS:
        outputs = model(**model_inputs(model, batch), output_hidden_states=hidden)
        return Signals(_logits(outputs), tuple(outputs.hidden_states) if hidden else ())
    with _listening(model) as heard:
        outputs = model(**model_inputs(model, batch), output_hidden_states=hidden)
    return Signals(
        _logits(outputs),
        tuple(outputs.hidden_states) if hidden else (),
        **{name: READERS[name](heard) for name in sorted(wanted & ATTENTION_SIGNALS)},
    )


def _logits(outputs: Any) -> torch.Tensor:
    """Return the logits; none of an encoder without a head."""
    logits: torch.Tensor = getattr(outputs, "logits", torch.empty(0))
    return logits


@dataclass
class _Heard:
    """What the hooks have heard, a call each layer."""

    family: Family
    heads: int
    queries: list[torch.Tensor] = field(default_factory=list)
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    calls: list[tuple[nn.Module, Mapping[str, Any]]] = field(default_factory=list)

    def by_head(self, states: list[torch.Tensor]) -> Tensors:
        """Split (batch, seq, hidden) into (batch, heads, seq, head_dim)."""
        return tuple(state.unflatten(-1, (self.heads, -1)).transpose(1, 2) for state in states)

    def scores(self) -> Tensors:
        parts = zip(self.calls, self.by_head(self.queries), self.by_head(self.keys), strict=True)
        # products in float32, although the model's own may be in bfloat16
        with torch.autocast(self.queries[0].device.type, enabled=False):
            return tuple(
                self.family.scores(attention, call, query.float(), key.float())
                for (attention, call), query, key in parts
            )


READERS: Mapping[Signal, Callable[[_Heard], Tensors]] = {
    "queries": lambda heard: heard.by_head(heard.queries),
    "keys": lambda heard: heard.by_head(heard.keys),
    "values": lambda heard: heard.by_head(heard.values),
    "attention_scores": _Heard.scores,
}


@contextmanager
def _listening(model: PreTrainedModel) -> Iterator[_Heard]:
    """Hook every layer once; a layer that runs repeatedly (ALBERT's) is heard each time."""
    family = family_of(model)
    heard = _Heard(family, model.config.num_attention_heads)
    hooks = []
    for layer in dict.fromkeys(encoder_layers(model)):
        parts = ((family.query, heard.queries), (family.key, heard.keys))
        for path, states in (*parts, (family.value, heard.values)):
            hooks.append(layer.get_submodule(path).register_forward_hook(_append_to(states)))
        attention = layer.get_submodule(family.attention)
        hooks.append(
            attention.register_forward_pre_hook(_append_call_to(heard.calls), with_kwargs=True)
        )
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def _append_to(states: list[torch.Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        states.append(output)

    return hook


def _append_call_to(calls: list[tuple[nn.Module, Mapping[str, Any]]]) -> Callable[..., None]:
    def hook(module: nn.Module, positional: Any, named: Mapping[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*positional, **named)
        calls.append((module, cast("Mapping[str, Any]", bound.arguments)))

    return hook
