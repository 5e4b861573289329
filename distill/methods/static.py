"""Static student."""

from __future__ import annotations

from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.method import Method, one_phase
from distill.students.student import STATIC_STUDENT

STATIC = Method(
    name="static",
    paper="model2vec, Tulkens and van Dongen 2024",
    student=STATIC_STUDENT,
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 5, "learning_rate": 1e-3},
)
