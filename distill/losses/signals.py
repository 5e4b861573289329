"""Signals: a model's outputs on a batch for a loss: logits, hidden states, parts of attention.

Queries, keys, values and attention scores are read with hooks, at the paths of FAMILIES, so that no
model code is copied and every family has them. Scores are taken before mask and softmax, since
`output_attentions` of transformers gives probabilities, which have lost the scale. Only the
requested layers are computed and stored.

PyTorch is imported inside functions, since settings of methods name signals without loading it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
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
"""Signals that have the embeddings as layer 0."""

ATTENTION_SIGNALS: frozenset[Signal] = frozenset({"queries", "keys", "values", "attention_scores"})
"""Signals that hooks read; the architecture needs a row in FAMILIES."""

TEXT_SIGNALS: frozenset[Signal] = frozenset({"logits", "sentence_states"})
"""Signals of a text as a whole: small enough to cache on disk, and comparable between student and
teacher even with different tokens."""

Layers: TypeAlias = "Mapping[int, torch.Tensor]"
"""A signal by layer, counted from 1; 0 is the embeddings."""

Wanted = Mapping[Signal, frozenset[int]]
"""Requested signals and their layers; logits have no layers."""


@dataclass(frozen=True)
class Signals:
    """A model's outputs on a batch: the requested layers of each signal.

    The batch is of token rows; an example may have several.
    """

    logits: torch.Tensor
    """(batch, labels); a tagger's (batch, seq, labels); a language model's (batch, seq, vocab);
    empty for a bare encoder."""
    depth: int = 0
    """How many layers the model has."""
    hidden_states: Layers = field(default_factory=dict)
    """Embeddings and each layer's output, (batch, seq, hidden)."""
    sentence_states: Layers = field(default_factory=dict)
    """Hidden states of the first token, [CLS], (batch, hidden)."""
    queries: Layers = field(default_factory=dict)
    """Of each layer, (batch, heads, seq, head_dim)."""
    keys: Layers = field(default_factory=dict)
    """Of each layer, (batch, heads, seq, head_dim)."""
    values: Layers = field(default_factory=dict)
    """Of each layer, (batch, heads, seq, head_dim)."""
    attention_scores: Layers = field(default_factory=dict)
    """Of each layer before mask and softmax, (batch, heads, seq, seq)."""
    weights: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)
    """Not outputs: the model's weights, at a common size with the other model's, by term."""


def joined(parts: Iterable[Wanted]) -> Wanted:
    """Return the union of what several readers request."""
    together: dict[Signal, frozenset[int]] = {}
    for part in parts:
        for signal, layers in part.items():
            together[signal] = together.get(signal, frozenset()) | layers
    return together


def read_signals(model: PreTrainedModel, batch: TensorBatch, wanted: Wanted) -> Signals:
    """Run the model on a batch; return the logits and the requested signals.

    Raises:
        ModelError: parts of attention are requested of an architecture that is not in FAMILIES.
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
        _recording(model) if attends else nullcontext(_Recording()) as recording,
    ):
        outputs = model(**model_inputs(model, batch), output_hidden_states=has_states)
    recording.states = (*outputs.hidden_states[:-1], *last) if has_states else ()
    read: dict[str, Any] = {
        signal: {layer: READERS[signal](recording, layer) for layer in sorted(layers)}
        for signal, layers in wanted.items()
        if signal in READERS
    }
    logits = getattr(outputs, "logits", torch.empty(0))  # a bare encoder has none
    return Signals(logits, model.config.num_hidden_layers, **read)


@dataclass
class _Recording:
    """Records of a forward pass: the states, and the hooks' records, one call per layer."""

    family: Family | None = None
    heads: list[int] = field(default_factory=list)
    """Of each layer."""
    states: tuple[torch.Tensor, ...] = ()
    projected: dict[str, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    """Queries, keys and values of each layer, (batch, seq, hidden), by the names of Projections."""
    calls: list[tuple[nn.Module, Mapping[str, Any]]] = field(default_factory=list)

    def record_projection(self, name: str, states: torch.Tensor) -> None:
        """Record the first output of a projection in its layer's attention.

        DeBERTa with `share_att_key` projects the positions too, after the states.
        """
        if len(self.projected[name]) < len(self.calls):
            self.projected[name].append(states)

    def record_call(self, module: nn.Module, positional: Any, keywords: Mapping[str, Any]) -> None:
        """Record the arguments of a layer's attention, by name."""
        bound = inspect.signature(module.forward).bind(*positional, **keywords)
        self.calls.append((module, bound.arguments))

    def by_head(self, name: str, layer: int) -> torch.Tensor:
        """Split a layer's (batch, seq, hidden) into (batch, heads, seq, head_dim).

        Keys and values that several heads share are repeated for each head.
        """
        heads = self.heads[layer - 1]
        size = self.projected["query"][layer - 1].shape[-1] // heads
        whole = self.projected[name][layer - 1]
        by_head: torch.Tensor = whole.unflatten(-1, (-1, size)).transpose(1, 2)
        shared = heads // by_head.shape[1]
        return by_head if shared == 1 else by_head.repeat_interleave(shared, dim=1)

    def scores(self, layer: int) -> torch.Tensor:
        import torch

        assert self.family is not None
        attention, call = self.calls[layer - 1]
        query, key = (self.by_head(part, layer) for part in ("query", "key"))
        # products in float32, although the model's own may be in bfloat16
        with torch.autocast(query.device.type, enabled=False):
            return self.family.scores(attention, call, query.float(), key.float())


READERS: Mapping[Signal, Callable[[_Recording, int], torch.Tensor]] = {
    "hidden_states": lambda recording, layer: recording.states[layer],
    "sentence_states": lambda recording, layer: recording.states[layer][:, 0],
    "queries": lambda recording, layer: recording.by_head("query", layer),
    "keys": lambda recording, layer: recording.by_head("key", layer),
    "values": lambda recording, layer: recording.by_head("value", layer),
    "attention_scores": _Recording.scores,
}


@contextmanager
def _last_states(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Record the encoder's last hidden states (batch, seq, hidden), the input of a head.

    transformers before 5 returns ModernBERT's last state without its final norm.
    """
    last: list[torch.Tensor] = []
    with model.base_model.register_forward_hook(lambda _, inputs, output: last.append(output[0])):
        yield last


@contextmanager
def _recording(model: PreTrainedModel) -> Iterator[_Recording]:
    """Hook every layer once; a layer that runs repeatedly (ALBERT's) is recorded each time."""
    from bertender.models.families import encoder_layers, family_of
    from bertender.models.own_models import heads_of

    family = family_of(model)
    recording = _Recording(family, heads_of(model.config))
    with ExitStack() as hooks:
        for layer in dict.fromkeys(encoder_layers(model)):
            for hook in family.projections.listen(layer, recording.record_projection):
                hooks.enter_context(hook)
            call = layer.get_submodule(family.attention).register_forward_pre_hook
            hooks.enter_context(call(recording.record_call, with_kwargs=True))
        yield recording
