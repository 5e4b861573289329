"""The terms of a method's loss: rows of data with a weight, computed on signals.

Terms that compare layers have a layer map: which student layer learns from which teacher layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from bertender.core.config import Table
from bertender.metrics.metric import NO_LABEL
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.training.heads import HEADS, Head, hard_labels, soft_labels
from distill.losses.functions import (
    relation_divergence,
    token_soft_labels,
    vocabulary_labels,
    weight_mse,
)
from distill.losses.signals import STATE_SIGNALS, TEXT_SIGNALS, Signal, Signals, Wanted, joined

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from bertender.training.examples import TensorBatch

Loss: TypeAlias = "Callable[..., torch.Tensor]"

Pairs = tuple[tuple[int, int], ...]
"""(student layer, teacher layer) as the papers count them: from 1, and 0 for the embeddings"""
LayerMap = Callable[[int, int], Pairs]
"""(layers of the student, of the teacher) -> pairs of layers"""


def last(student: int, teacher: int) -> Pairs:
    """Match the last layers alone."""
    return ((student, teacher),)


def uniform(student: int, teacher: int) -> Pairs:
    """Match evenly spread teacher layers, up to the last (TinyBERT, eq. 6: g(m) = m N / M)."""
    return tuple((layer, layer * teacher // student) for layer in range(1, student + 1))


def with_embeddings(student: int, teacher: int) -> Pairs:
    """Match the embeddings, and `uniform` layers."""
    return ((0, 0), *uniform(student, teacher))


def skip(student: int, teacher: int) -> Pairs:
    """Match every k-th teacher layer but the last, which the soft labels teach (PKD-Skip)."""
    return uniform(student, teacher)[:-1]


def last_between(student: int, teacher: int) -> Pairs:
    """Match the teacher's last layers but the very last (PKD-Last: 7 to 11 for 12 -> 6)."""
    return tuple((layer, teacher - student + layer) for layer in range(1, student))


LAYER_MAPS: Table[LayerMap] = Table(
    "layer map",
    {
        "last": last,
        "last-between": last_between,
        "skip": skip,
        "uniform": uniform,
        "with-embeddings": with_embeddings,
    },
)


class Term:
    """One part of a loss; by default one that fits any two models of the same labels."""

    name: str
    weight: float
    teaches: ClassVar[bool] = True
    """The student learns from it, and not only what is trained with it."""

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals that the teacher must have."""
        return frozenset()

    @property
    def shared(self) -> str:
        """Setting that must be equal in both models' configs; empty for none."""
        return ""

    def at(self, layers: int) -> Term:
        """Return the term for a student of a depth."""
        return self

    def pairs(self, student: int, teacher: int) -> Pairs:
        """Return the pairs of layers that are compared at these depths; none where no layer is."""
        return ()

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        """Return why the two models cannot be matched, and what would work; empty if they can."""
        return ""

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        """Return the unweighted loss, a scalar."""
        raise NotImplementedError


class _OfLogits(Term):
    """A term that reads the teacher's logits."""

    @property
    def needs(self) -> frozenset[Signal]:
        return frozenset({"logits"})


class _OfLayers(Term):
    """A term that reads a signal of some layers."""

    signal: Signal

    @property
    def needs(self) -> frozenset[Signal]:
        return frozenset({self.signal})


def wanted_by(terms: Iterable[Term], student: int, teacher: int) -> tuple[Wanted, Wanted]:
    """Return what the terms with a weight above 0 read of a student and a teacher so deep."""
    read = [(term.needs, term.pairs(student, teacher)) for term in terms if term.weight]
    mine, theirs = (
        joined({s: frozenset(pair[side] for pair in pairs) for s in needs} for needs, pairs in read)
        for side in (0, 1)
    )
    return mine, theirs


@dataclass(frozen=True)
class HardLabels(Term):
    """The true labels as the target."""

    weight: float
    head: Head = HEADS[SINGLE_LABEL.name]
    """Head of the student."""
    name: str = "hard"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return self.head.hard_loss(self.head.joined(student.logits, batch), batch)


@dataclass(frozen=True)
class SoftLabels(_OfLogits):
    """The teacher's softened distribution as the target; of taggers, at the first token of each
    word, the only one that has a label."""

    weight: float
    temperature: float
    loss: Loss = soft_labels
    """(student logits, teacher logits, temperature) -> scalar, of kinds of problems whose
    predictions are distributions"""
    head: Head = HEADS[SINGLE_LABEL.name]
    """Head of both models."""
    name: str = "soft"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        mine, theirs = (self.head.joined(each.logits, batch) for each in (student, teacher))
        return self.head.soft_loss(mine, theirs, batch, self.temperature, self.loss)


@dataclass(frozen=True)
class LogitMatch(_OfLogits):
    """The teacher's logits as they are as the target, with nothing to soften."""

    weight: float
    head: Head = HEADS[SINGLE_LABEL.name]
    """Head of both models."""
    name: str = "logits"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        mine, theirs = (self.head.joined(each.logits, batch) for each in (student, teacher))
        return self.head.logit_loss(mine, theirs, batch)


@dataclass(frozen=True)
class MaskedWords(Term):
    """The words that were masked as the target, in phases that mask some."""

    weight: float
    name: str = "words"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return hard_labels(student.logits, batch["targets"])


@dataclass(frozen=True)
class SoftWords(_OfLogits):
    """The teacher's softened distribution over the vocabulary, for every real token."""

    weight: float
    temperature: float
    masked_alone: bool = False
    """For the masked words alone."""
    name: str = "soft"

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        asked = batch["targets"] != NO_LABEL if self.masked_alone else batch["attention_mask"]
        return token_soft_labels(student.logits, teacher.logits, asked, self.temperature)


@dataclass(frozen=True)
class Match(_OfLayers):
    """A signal of some teacher layers as the target of some student layers."""

    name: str
    weight: float
    signal: Signal
    loss: Loss
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

    def at(self, layers: int) -> Match:
        if not self.divided_by_depth:
            return self
        return replace(self, weight=self.weight / layers, divided_by_depth=False)

    @property
    def shared(self) -> str:
        return "" if self.projected else _SAME[self.signal]

    def pairs(self, student: int, teacher: int) -> Pairs:
        pairs = self.layers(student, teacher)[: self.up_to]
        return pairs if self.only is None else pairs[: self.only + 1][-1:]

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        has_embeddings = self.signal in STATE_SIGNALS
        if missing := _unmatched(self.name, self.pairs, student, teacher, has_embeddings):
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


_SAME: Mapping[Signal, str] = {
    "hidden_states": "hidden_size",
    "sentence_states": "hidden_size",
    "attention_scores": "num_attention_heads",
}
"""Settings that two models must share for a signal to be compared, as their configs name them."""


@dataclass(frozen=True)
class Relations(_OfLayers):
    """Similarity of each token's query, key or value to every other's in the teacher's layer."""

    name: str
    weight: float
    signal: Signal
    layers: LayerMap
    relation_heads: int | None = None
    """Into how many heads both models' vectors are cut; None keeps the heads, as many in both."""

    @property
    def shared(self) -> str:
        return "num_attention_heads" if self.relation_heads is None else ""

    def pairs(self, student: int, teacher: int) -> Pairs:
        return self.layers(student, teacher)

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        if missing := _unmatched(self.name, self.pairs, student, teacher, False):
            return missing
        ours, theirs = student.num_attention_heads, teacher.num_attention_heads
        if self.relation_heads is None and ours != theirs:
            return (
                f"term {self.name!r} compares relations head by head: the student has {ours} heads "
                f"and the teacher {theirs}, which must be equal"
            )
        widths = student.hidden_size, teacher.hidden_size
        if self.relation_heads and any(width % self.relation_heads for width in widths):
            return (
                f"relation_heads={self.relation_heads} must divide the widths of both models, "
                f"{widths[0]} and {widths[1]}; {math.gcd(*widths)} and its divisors do"
            )
        return ""

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        import torch

        ours, theirs = getattr(student, self.signal), getattr(teacher, self.signal)
        mask, heads = batch["attention_mask"], self.relation_heads
        losses = [
            relation_divergence(ours[mine], theirs[other], mask, heads)
            for mine, other in self.pairs(student.depth, teacher.depth)
        ]
        return torch.stack(losses).mean()


MIXED_INPUTS = {"input_ids": "mixed_input_ids", "attention_mask": "mixed_attention_mask"}
"""Columns in both vocabularies that the teacher's copy reads, by the names that it has for them."""
MIXED_TARGETS = "mixed_targets"


@dataclass(frozen=True)
class MixedWords(Term):
    """The masked words of a row in both vocabularies as the target of the teacher's copy."""

    weight: float
    name: str = "mixed"
    teaches: ClassVar[bool] = False

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        own = student.logits.shape[-1]
        entries = teacher.logits.shape[-1] - own, own
        return vocabulary_labels(teacher.logits, batch[MIXED_TARGETS], entries)


@dataclass(frozen=True)
class ProjectedWeights(Term):
    """The teacher's weights as the target of the student's, through projections that are learned.

    Word embeddings in the student's vocabulary, and all weights of the layers that are matched.
    """

    name: str
    weight: float
    layers: LayerMap
    projects_student: bool
    """The student's weights are brought to the teacher's size; else the teacher's to its size."""

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        from bertender.models.families import FAMILIES

        if missing := _unmatched(self.name, self.layers, student, teacher, False):
            return missing
        family = FAMILIES.get(teacher.model_type)
        if family and family.plain_layers:
            return ""
        plain = sorted(name for name, row in FAMILIES.items() if row.plain_layers)
        return (
            f"term {self.name!r} compares the weights of layers one by one, and those of a "
            f"{teacher.model_type!r} teacher are of its own kind. Give a teacher of these: "
            f"{', '.join(plain)}"
        )

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        return weight_mse(student.weights[self.name], teacher.weights[self.name])


def _unmatched(
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
