"""METHODS: every distillation method by name, one paper a file."""

from __future__ import annotations

from collections.abc import Mapping

from bertender.core.errors import UnknownNameError
from distill.methods.distilbert import DISTILBERT
from distill.methods.hard import HARD
from distill.methods.method import Method

__all__ = ["METHODS", "Method", "method_named"]

METHODS: Mapping[str, Method] = {"distilbert": DISTILBERT, "hard": HARD}


def method_named(name: str) -> Method:
    """Return a row of METHODS, or raise UnknownNameError with the nearest name."""
    if name not in METHODS:
        raise UnknownNameError("distillation method", name, METHODS)
    return METHODS[name]
