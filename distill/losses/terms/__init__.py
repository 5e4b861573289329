"""The terms of a method's loss: each a row of data with its weight, computed on signals."""

from __future__ import annotations

from distill.losses.terms.layers import Match, Relations
from distill.losses.terms.logits import HardLabels, LogitMatch, MaskedWords, SoftLabels, SoftWords
from distill.losses.terms.term import Term, wanted_by
from distill.losses.terms.vocabularies import MixedWords, ProjectedWeights

__all__ = [
    "HardLabels",
    "LogitMatch",
    "MaskedWords",
    "Match",
    "MixedWords",
    "ProjectedWeights",
    "Relations",
    "SoftLabels",
    "SoftWords",
    "Term",
    "wanted_by",
]
