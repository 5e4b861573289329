"""The control."""

from __future__ import annotations

from distill.losses.terms import HardLabels
from distill.methods.method import Method, one_phase
from distill.students.student import DISTILBERT_STUDENT

HARD = Method(
    name="hard",
    paper="none",
    student=DISTILBERT_STUDENT,
    start_layers="alternating",
    phases=one_phase(HardLabels(weight=1.0)),
)
