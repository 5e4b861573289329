"""Terms that compare layers of student and teacher, by a layer map."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from distill.losses import relation_divergence
from distill.losses.layer_maps import LayerMap, Pairs
from distill.losses.signals import STATE_SIGNALS, TEXT_SIGNALS, Signal, Signals

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from bertender.training.examples import TensorBatch

__all__ = ["Match", "Relations", "unmatched"]


@dataclass(frozen=True)
class Match:
    """A signal of some teacher layers as the target of some student layers."""

    name: str
    weight: float
    signal: Signal
    loss: Callable[..., torch.Tensor]
    """(student, teacher, mask) -> scalar, a row of `losses`; of signals of a whole text, which have
    no padding, (student, teacher) -> scalar"""
    layers: LayerMap
    over_layers: Literal["sum", "mean"] = "mean"
    projected: bool = False
    """States of another width than the teacher's first go through a linear layer, one for all
    layers and terms, which is learned with the student and is no part of it."""
    up_to: int | None = None
    """Number of pairs of layers to match, the lowest first; None matches all."""
    only: int | None = None
    """Match the pair at this place alone, from 0, or the last where there are fewer; None matches
    all."""
    divided_by_depth: bool = False
    """The weight is over the number of the student's layers."""
    teaches: ClassVar[bool] = True

    def at(self, layers: int) -> Self:
        """Return the term for a student of a depth."""
        if not self.divided_by_depth:
            return self
        return replace(self, weight=self.weight / layers, divided_by_depth=False)

    @property
    def needs(self) -> frozenset[Signal]:
        return frozenset({self.signal})

    @property
    def shared(self) -> str:
        return "" if self.projected else _SAME[self.signal]

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        has_embeddings = self.signal in STATE_SIGNALS
        if missing := unmatched(self.name, self.pairs, student, teacher, has_embeddings):
            return missing
        if not self.shared:
            return ""
        ours, theirs = getattr(student, self.shared), getattr(teacher, self.shared)
        if ours == theirs:
            return ""
        return (
            f"term {self.name!r} compares {self.signal.replace('_', ' ')}: the student has "
            f"{self.shared}={ours} and the teacher {theirs}, which must be equal"
        )

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        import torch

        ours, theirs = getattr(student, self.signal), getattr(teacher, self.signal)
        mask = () if self.signal in TEXT_SIGNALS else (batch["attention_mask"],)
        losses = torch.stack(
            [
                self.loss(ours[mine], theirs[other], *mask)
                for mine, other in self.pairs(student.depth, teacher.depth)
            ]
        )
        return losses.sum() if self.over_layers == "sum" else losses.mean()

    def pairs(self, student: int, teacher: int) -> Pairs:
        pairs = self.layers(student, teacher)[: self.up_to]
        return pairs if self.only is None else pairs[: self.only + 1][-1:]


@dataclass(frozen=True)
class Relations:
    """Similarity of each token's query, key or value to every other's in the teacher's layer."""

    name: str
    weight: float
    signal: Signal
    layers: LayerMap
    relation_heads: int | None = None
    """Into how many heads both models' vectors are cut; None keeps the heads, as many in both."""
    teaches: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[Signal]:
        return frozenset({self.signal})

    @property
    def shared(self) -> str:
        return "num_attention_heads" if self.relation_heads is None else ""

    def pairs(self, student: int, teacher: int) -> Pairs:
        return self.layers(student, teacher)

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        if missing := unmatched(self.name, self.pairs, student, teacher, False):
            return missing
        if self.relation_heads is None:
            return self._unequal_heads(student.num_attention_heads, teacher.num_attention_heads)
        widths = student.hidden_size, teacher.hidden_size
        if any(width % self.relation_heads for width in widths):
            return (
                f"relation_heads={self.relation_heads} must divide the widths of both models, "
                f"{widths[0]} and {widths[1]}; {math.gcd(*widths)} and its divisors do"
            )
        return ""

    def _unequal_heads(self, ours: int, theirs: int) -> str:
        if ours == theirs:
            return ""
        return (
            f"term {self.name!r} compares relations head by head: the student has {ours} heads "
            f"and the teacher {theirs}, which must be equal"
        )

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        import torch

        ours, theirs = getattr(student, self.signal), getattr(teacher, self.signal)
        losses = [
            relation_divergence(
                ours[mine], theirs[other], batch["attention_mask"], self.relation_heads
            )
            for mine, other in self.pairs(student.depth, teacher.depth)
        ]
        return torch.stack(losses).mean()


_SAME: Mapping[Signal, str] = {
    "hidden_states": "hidden_size",
    "sentence_states": "hidden_size",
    "attention_scores": "num_attention_heads",
}
"""Settings that two models must share for a signal to be compared, as their configs name them."""


def unmatched(
    name: str,
    layers: LayerMap,
    student: PretrainedConfig,
    teacher: PretrainedConfig,
    embeddings: bool,
) -> str:
    """Return which layers a map names that are not there, in words; empty where all are.

    Layer 0, the embeddings, is matched with layer 0 alone, and only where the signal has it.
    """
    depths = student.num_hidden_layers, teacher.num_hidden_layers
    pairs = layers(*depths)
    known = {(0, 0)} if embeddings else set()
    wrong = [
        pair
        for pair in pairs
        if pair not in known
        and not all(1 <= layer <= depth for layer, depth in zip(pair, depths, strict=True))
    ]
    if pairs and not wrong:
        return ""
    pair = f" {wrong[0]}" if wrong else ""
    return (
        f"term {name!r} has no layers{pair} (student, teacher) to match in a student of "
        f"{depths[0]} and a teacher of {depths[1]}. Choose another layer_map, or other layers"
    )
