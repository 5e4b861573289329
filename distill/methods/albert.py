"""ALBERT student (merged with its builder by hand later)."""

from __future__ import annotations

from distill.losses.functions import hidden_cosine
from distill.losses.terms import HardLabels, Match, SoftLabels, last
from distill.methods.method import Method, one_phase
from distill.students.student import ALBERT_STUDENT

ALBERT = Method(
    name="albert",
    paper="Lan et al. 2019, arXiv 1909.11942 (the student)",
    student=ALBERT_STUDENT,
    phases=one_phase(
        SoftLabels(weight=0.5, temperature=2.0),
        HardLabels(weight=0.5),
        Match("cosine", 0.5, "hidden_states", hidden_cosine, layers=last),
    ),
)
