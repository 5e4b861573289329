"""A static student, the smallest there is: a table of vectors and one layer."""

from __future__ import annotations

from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import STATIC_STUDENT

__all__ = ["STATIC"]

STATIC = Method(
    name="static",
    paper="model2vec",
    student=STATIC_STUDENT,
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 5, "learning_rate": 1e-3},
)
