"""METHODS: distillation methods on a task, some also on a corpus. Each file is one paper.

Methods are data and do not load PyTorch, so that settings and help work without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertender.core.config import Table
from distill.methods.albert import ALBERT
from distill.methods.bilstm import BILSTM
from distill.methods.compact import MINIBERT, PD
from distill.methods.distilbert import DISTILBERT, HARD
from distill.methods.method import Method
from distill.methods.minilm import MINILM, MINILM_V2
from distill.methods.mobilebert import MOBILEBERT, MOBILEBERT_TINY
from distill.methods.modernbert import MODERNBERT
from distill.methods.shorter import (
    INTERNAL,
    INTERNAL_ALL,
    INTERNAL_PROGRESSIVE,
    PKD,
    THESEUS,
    THESEUS_CONSTANT,
)
from distill.methods.small_vocab import SMALL_VOCAB
from distill.methods.static import STATIC
from distill.methods.tinybert import TINYBERT

_ROWS = (
    ALBERT,
    BILSTM,
    DISTILBERT,
    HARD,
    INTERNAL,
    INTERNAL_ALL,
    INTERNAL_PROGRESSIVE,
    MINIBERT,
    MINILM,
    MINILM_V2,
    MOBILEBERT,
    MOBILEBERT_TINY,
    MODERNBERT,
    PD,
    PKD,
    SMALL_VOCAB,
    STATIC,
    THESEUS,
    THESEUS_CONSTANT,
    TINYBERT,
)

METHODS: Table[Method] = Table("distillation method", {row.name: row for row in _ROWS})
"""Methods that distil a classifier on a task."""

GENERAL_METHODS: Table[Method] = Table(
    "distillation method", {row.name: row.on_corpus for row in _ROWS if row.general}
)
"""Methods that also distil an encoder into a smaller one on plain text, before any task."""

AUTO = "auto"
"""Choose the method by the kind of teacher and start (CHOICES)."""


@dataclass(frozen=True)
class Choice:
    """A row of CHOICES."""

    condition: str
    """Words for the documentation."""
    given: str
    """Setting that must be explicit; empty for none."""
    settings: Mapping[str, Any]
    """The method, and defaults that replace its own."""


CHOICES = (
    Choice("where the teacher is a file", "teacher_file", {"method": "pd"}),
    Choice("where a student starts from another encoder", "student", {"method": "pd"}),
    Choice("elsewhere", "", {"method": "distilbert"}),
)
"""Meaning of `auto`: the first choice whose condition holds."""


def automatic_settings(explicit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the first choice whose condition holds."""
    return next(
        choice.settings
        for choice in CHOICES
        if not choice.given or explicit.get(choice.given) is not None
    )
