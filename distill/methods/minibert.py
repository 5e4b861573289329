"""MiniBERT."""

from __future__ import annotations

from distill.losses.terms import HardLabels, SoftLabels
from distill.methods.method import Method, one_phase
from distill.students.student import MINIBERT_STUDENT

MINIBERT = Method(
    name="minibert",
    paper="Tsai et al. 2019, arXiv 1909.00100",
    student=MINIBERT_STUDENT,
    phases=one_phase(SoftLabels(weight=0.5, temperature=2.0), HardLabels(weight=0.5)),
    settings={"epochs": 10, "learning_rate": 5e-4},
)
