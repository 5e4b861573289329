"""METHODS: every distillation method by name, one paper a file."""

from __future__ import annotations

from collections.abc import Mapping

from bertender.core.errors import UnknownNameError
from distill.methods.albert import ALBERT
from distill.methods.distilbert import DISTILBERT
from distill.methods.hard import HARD
from distill.methods.internal import INTERNAL
from distill.methods.method import Method, Phase
from distill.methods.minilm import MINILM, MINILM_V2
from distill.methods.pd import PD
from distill.methods.pkd import PKD
from distill.methods.theseus import THESEUS, THESEUS_CONSTANT
from distill.methods.tinybert import TINYBERT

__all__ = ["METHODS", "Method", "Phase", "method_named"]

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        ALBERT,
        DISTILBERT,
        HARD,
        INTERNAL,
        MINILM,
        MINILM_V2,
        PD,
        PKD,
        THESEUS,
        THESEUS_CONSTANT,
        TINYBERT,
    )
}


def method_named(name: str, rows: Mapping[str, Method] = METHODS) -> Method:
    """Return a row of METHODS, or of another table; UnknownNameError has the nearest name."""
    if name not in rows:
        raise UnknownNameError("distillation method", name, rows)
    return rows[name]
