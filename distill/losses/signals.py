"""Signals of a model on one batch that a loss may read: logits, hidden states, parts of attention.

Queries, keys, values and attention scores are read with hooks, through the paths of FAMILIES, so
that no model code is copied and every family gives them. Scores are those before mask and
softmax: `output_attentions` of transformers gives probabilities, which have lost their scale.
Only the requested layers are computed and stored.

PyTorch is imported in the functions: methods and their settings name signals without loading it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from bertender.models.family import Family
    from bertender.training.examples import TensorBatch

Signal = Literal[
    "logits",
    "hidden_states",
    "sentence_states",
    "queries",
    "keys",
    "values",
    "attention_scores",
]

STATE_SIGNALS: frozenset[Signal] = frozenset({"hidden_states", "sentence_states"})
"""Signals that have the embeddings in front, as layer 0."""

ATTENTION_SIGNALS: frozenset[Signal] = frozenset({"queries", "keys", "values", "attention_scores"})
"""Signals that hooks read; the architecture needs a row in FAMILIES."""

TEXT_SIGNALS: frozenset[Signal] = frozenset({"logits", "sentence_states"})
"""Signals of a text as a whole: small enough to keep on disk, and the same texts may be cut into
other tokens for the student than for the teacher."""

Layers: TypeAlias = "Mapping[int, torch.Tensor]"
"""A signal by layer, as the papers count: from 1, and 0 for the embeddings."""

Wanted = Mapping[Signal, frozenset[int]]
"""Which signals are read, and of which layers; the logits have none."""


@dataclass(frozen=True)
class Signals:
    """A model's outputs on a batch: of each signal the requested layers, and no other.

    A batch is of token rows here, of which an example may have several.
    """

    logits: torch.Tensor
    """(batch, labels), of a tagger (batch, seq, labels), of a language model (batch, seq, vocab);
    empty of an encoder alone."""
    depth: int = 0
    """How many layers the model has."""
    hidden_states: Layers = field(default_factory=dict)
    """Embeddings and each layer's output, (batch, seq, hidden)."""
    sentence_states: Layers = field(default_factory=dict)
    """Their first token's, [CLS], (batch, hidden)."""
    queries: Layers = field(default_factory=dict)
    """Of each layer, (batch, heads, seq, head_dim)."""
    keys: Layers = field(default_factory=dict)
    """Of each layer, (batch, heads, seq, head_dim)."""
    values: Layers = field(default_factory=dict)
    """Of each layer, (batch, heads, seq, head_dim)."""
    attention_scores: Layers = field(default_factory=dict)
    """Of each layer before mask and softmax, (batch, heads, seq, seq)."""
    weights: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)
    """Not outputs but the model's own weights, at another's size, by the term that compares."""


def joined(parts: Iterable[Wanted]) -> Wanted:
    """Return the union of what several readers request."""
    together: dict[Signal, frozenset[int]] = {}
    for part in parts:
        for signal, layers in part.items():
            together[signal] = together.get(signal, frozenset()) | layers
    return together


def read_signals(model: PreTrainedModel, batch: TensorBatch, wanted: Wanted) -> Signals:
    """Run the model on a batch and read the requested layers; the logits are always there.

    Raises:
        ModelError: parts of attention are requested of a model that is not a row of FAMILIES.
    """
    import torch

    from bertender.models.classifier import model_inputs
    from bertender.training.heads.numbers import exact_numbers

    attends, has_states = (
        bool(kind & wanted.keys()) for kind in (ATTENTION_SIGNALS, STATE_SIGNALS)
    )
    is_number = model.config.num_labels == 1
    with (
        exact_numbers(model) if is_number else nullcontext(),
        _last_states(model) if has_states else nullcontext(list[torch.Tensor]()) as last,
        _listening(model) if attends else nullcontext(_Heard()) as heard,
    ):
        outputs = model(**model_inputs(model, batch), output_hidden_states=has_states)
    heard.states = (*outputs.hidden_states[:-1], *last) if has_states else ()
    read: dict[str, Any] = {
        signal: {layer: READERS[signal](heard, layer) for layer in sorted(layers)}
        for signal, layers in wanted.items()
        if signal in READERS
    }
    logits = getattr(outputs, "logits", torch.empty(0))  # an encoder alone has none
    return Signals(logits, model.config.num_hidden_layers, **read)


@dataclass
class _Heard:
    """Records of a run of the model: its states, and what the hooks recorded, a call each
    layer."""

    family: Family | None = None
    heads: list[int] = field(default_factory=list)
    """Of each layer."""
    states: tuple[torch.Tensor, ...] = ()
    projected: dict[str, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    """Queries, keys and values of each layer, (batch, seq, hidden), by the names of Projections."""
    calls: list[tuple[nn.Module, Mapping[str, Any]]] = field(default_factory=list)

    def hear(self, name: str, states: torch.Tensor) -> None:
        """Record what a projection computes first in a run of its layer's attention.

        DeBERTa's with `share_att_key` project the positions too, after the states.
        """
        if len(self.projected[name]) < len(self.calls):
            self.projected[name].append(states)

    def hear_call(self, module: nn.Module, positional: Any, keywords: Mapping[str, Any]) -> None:
        """Record the arguments of a layer's attention, by name."""
        bound = inspect.signature(module.forward).bind(*positional, **keywords)
        self.calls.append((module, bound.arguments))

    def by_head(self, name: str, layer: int) -> torch.Tensor:
        """Split a layer's (batch, seq, hidden) into (batch, heads, seq, head_dim)."""
        whole = self.projected[name][layer - 1]
        by_head: torch.Tensor = whole.unflatten(-1, (self.heads[layer - 1], -1)).transpose(1, 2)
        return by_head

    def scores(self, layer: int) -> torch.Tensor:
        import torch

        assert self.family is not None
        attention, call = self.calls[layer - 1]
        query, key = (self.by_head(part, layer) for part in ("query", "key"))
        # products in float32, although the model's own may be in bfloat16
        with torch.autocast(query.device.type, enabled=False):
            return self.family.scores(attention, call, query.float(), key.float())


READERS: Mapping[Signal, Callable[[_Heard, int], torch.Tensor]] = {
    "hidden_states": lambda heard, layer: heard.states[layer],
    "sentence_states": lambda heard, layer: heard.states[layer][:, 0],
    "queries": lambda heard, layer: heard.by_head("query", layer),
    "keys": lambda heard, layer: heard.by_head("key", layer),
    "values": lambda heard, layer: heard.by_head("value", layer),
    "attention_scores": _Heard.scores,
}


@contextmanager
def _last_states(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Record the encoder's last states (batch, seq, hidden), those that a head reads.

    transformers before 5 lists ModernBERT's without the norm behind its last layer.
    """
    last: list[torch.Tensor] = []
    hook = model.base_model.register_forward_hook(lambda _, inputs, output: last.append(output[0]))
    try:
        yield last
    finally:
        hook.remove()


@contextmanager
def _listening(model: PreTrainedModel) -> Iterator[_Heard]:
    """Hook every layer once; a layer that runs repeatedly (ALBERT's) is recorded each time."""
    from bertender.models.families import encoder_layers, family_of
    from bertender.models.own_models import heads_of

    family = family_of(model)
    heard = _Heard(family, heads_of(model.config))
    hooks = []
    for layer in dict.fromkeys(encoder_layers(model)):
        hooks += family.projections.listen(layer, heard.hear)
        attention = layer.get_submodule(family.attention)
        hooks.append(attention.register_forward_pre_hook(heard.hear_call, with_kwargs=True))
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
