"""The control: the same student as `distilbert`, trained on the labels alone.

What a distilled student scores above this one is what distillation gave.
"""

from __future__ import annotations

from distill.losses.terms import HardLabels
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import DISTILBERT_STUDENT

__all__ = ["HARD"]

HARD = Method(
    name="hard",
    paper="none",
    student=DISTILBERT_STUDENT,
    start_layers="alternating",
    phases=one_phase(HardLabels(weight=1.0)),
)
