"""METHODS and GENERAL_METHODS: how to distil on a task and on a corpus, one paper a file."""

from __future__ import annotations

from bertender.core.table import Table
from distill.methods.albert import ALBERT
from distill.methods.bilstm import BILSTM
from distill.methods.distilbert import DISTILBERT, DISTILBERT_GENERAL
from distill.methods.hard import HARD
from distill.methods.internal import INTERNAL, INTERNAL_ALL, INTERNAL_PROGRESSIVE
from distill.methods.method import Method, Phase
from distill.methods.minibert import MINIBERT
from distill.methods.minilm import MINILM, MINILM_GENERAL, MINILM_V2, MINILM_V2_GENERAL
from distill.methods.mobilebert import (
    MOBILEBERT,
    MOBILEBERT_GENERAL,
    MOBILEBERT_TINY,
    MOBILEBERT_TINY_GENERAL,
)
from distill.methods.pd import PD
from distill.methods.pkd import PKD
from distill.methods.small_vocab import SMALL_VOCAB, SMALL_VOCAB_GENERAL
from distill.methods.theseus import THESEUS, THESEUS_CONSTANT
from distill.methods.tinybert import TINYBERT, TINYBERT_GENERAL

__all__ = ["GENERAL_METHODS", "METHODS", "Method", "Phase"]

_NOUN = "distillation method"

METHODS = Table(
    _NOUN,
    {
        method.name: method
        for method in (
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
            PD,
            PKD,
            SMALL_VOCAB,
            THESEUS,
            THESEUS_CONSTANT,
            TINYBERT,
        )
    },
)
"""On a task."""

GENERAL_METHODS = Table(
    _NOUN,
    {
        method.name: method
        for method in (
            DISTILBERT_GENERAL,
            MINILM_GENERAL,
            MINILM_V2_GENERAL,
            MOBILEBERT_GENERAL,
            MOBILEBERT_TINY_GENERAL,
            SMALL_VOCAB_GENERAL,
            TINYBERT_GENERAL,
        )
    },
)
"""Those that also distil an encoder into a smaller one on plain text, before any task."""
