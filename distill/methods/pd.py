"""Pre-trained distillation."""

from __future__ import annotations

from distill.losses.terms import SoftLabels
from distill.methods.method import Method, one_phase
from distill.students.student import PRETRAINED_STUDENT

PD = Method(
    name="pd",
    paper="Turc et al. 2019, arXiv 1908.08962",
    student=PRETRAINED_STUDENT,
    phases=one_phase(SoftLabels(weight=1.0, temperature=1.0)),
    settings={"epochs": 4, "learning_rate": 1e-4},
)
