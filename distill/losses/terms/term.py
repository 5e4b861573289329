"""Term of a loss: a row of data with its weight, computed on signals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from distill.losses.layer_maps import Pairs
from distill.losses.signals import Signal, Signals, Wanted, joined

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from bertender.training.examples import TensorBatch

__all__ = ["Term", "wanted_by"]


class Term(Protocol):
    """One part of a loss."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def teaches(self) -> bool:
        """Return whether the student learns from it, and not only what is trained with it."""
        ...

    @property
    def needs(self) -> frozenset[Signal]:
        """Signals that the teacher must have."""
        ...

    @property
    def shared(self) -> str:
        """Settings that must be equal in both models' configs; empty for none."""
        ...

    def pairs(self, student: int, teacher: int) -> Pairs:
        """Return the pairs of layers that are compared at these depths; none where no layer is."""
        ...

    def incompatibility(self, student: PretrainedConfig, teacher: PretrainedConfig) -> str:
        """Return why the two models cannot be matched, and what would work; empty if they can."""
        ...

    def __call__(self, student: Signals, teacher: Signals, batch: TensorBatch) -> torch.Tensor:
        """Return the unweighted loss, a scalar."""
        ...


def wanted_by(terms: Iterable[Term], student: int, teacher: int) -> tuple[Wanted, Wanted]:
    """Return what the terms with a weight above 0 read of a student and a teacher so deep."""
    read = [(term.needs, term.pairs(student, teacher)) for term in terms if term.weight]
    mine, theirs = (
        joined({s: frozenset(pair[side] for pair in pairs) for s in needs} for needs, pairs in read)
        for side in (0, 1)
    )
    return mine, theirs
