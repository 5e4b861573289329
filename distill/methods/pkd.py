"""Patient knowledge distillation."""

from __future__ import annotations

from distill.losses.functions import normalised_sentence_mse
from distill.losses.terms import HardLabels, Match, SoftLabels, skip
from distill.methods.method import Method, one_phase
from distill.students.student import SHORTER_STUDENT

PKD = Method(
    name="pkd",
    paper="Sun et al. 2019, arXiv 1908.09355",
    student=SHORTER_STUDENT,
    start_layers="first",
    phases=one_phase(
        SoftLabels(weight=0.7, temperature=10.0),
        HardLabels(weight=0.3),
        Match("patience", 500.0, "sentence_states", normalised_sentence_mse, layers=skip),
    ),
    settings={"epochs": 4},
)
