"""The terms of a method's loss: each a row of data with its weight, computed on signals."""

from __future__ import annotations

from distill.terms.answers import HardLabels, LogitMatch, MaskedWords, SoftLabels, SoftWords
from distill.terms.layers import Match, Relations
from distill.terms.term import Term, wanted_by
from distill.terms.vocabularies import MixedWords, ProjectedWeights

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
