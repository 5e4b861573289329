"""An ALBERT student (Lan et al. 2019, arXiv 1909.11942): one shared layer, narrow embeddings.

Student: the ALBERT class, as deep and wide as the teacher, with one layer that runs at every
depth (section 3.1, cross-layer parameter sharing) and embeddings of 128 that a linear layer
brings to the width (factorised embedding parameterisation). The shared layer starts as the mean
of the teacher's layers, the embeddings as the best factors of the teacher's (truncated SVD).
It is smaller on disk by far and no faster: as many layers run.
Loss: as `distilbert`, since ALBERT itself is not distilled in its paper.
"""

from __future__ import annotations

from distill.losses import hidden_cosine
from distill.losses.layer_maps import last
from distill.losses.terms import HardLabels, Match, SoftLabels
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import ALBERT_STUDENT

__all__ = ["ALBERT"]

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
