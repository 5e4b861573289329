"""The control: the same student as `distilbert`, trained on the labels alone.

What a distilled student scores above this one is what distillation gave.
"""

from __future__ import annotations

from distill.losses.terms import HardLabels
from distill.methods.method import Method, one_phase
from distill.students import alternating_layers, distilbert_student

__all__ = ["HARD"]

HARD = Method(
    name="hard",
    paper="none",
    builder=distilbert_student,
    start_layers=alternating_layers,
    phases=one_phase(HardLabels(weight=1.0)),
)
