"""BiLSTM student."""

from __future__ import annotations

from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.method import Method, one_phase
from distill.students.student import BILSTM_STUDENT

BILSTM = Method(
    name="bilstm",
    paper="Tang et al. 2019, arXiv 1903.12136",
    student=BILSTM_STUDENT,
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 10, "batch_size": 50, "learning_rate": 1e-3},
    augmentation="bilstm",
)
