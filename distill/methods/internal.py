"""Internal-representation distillation."""

from __future__ import annotations

from distill.losses.functions import attention_divergence, sentence_cosine
from distill.losses.terms import HardLabels, Match, SoftLabels, uniform
from distill.methods.method import Method, Phase, each_layer_alone, one_phase, up_to_each_layer
from distill.students.student import SHORTER_STUDENT

PAPER = "Aguilar et al. 2019, arXiv 1910.03723"
LABELS = (SoftLabels(0.5, temperature=1.0), HardLabels(0.5))
MATCHES = (
    Match("attention", 1.0, "attention_scores", attention_divergence, layers=uniform),
    Match("sentence", 1.0, "sentence_states", sentence_cosine, layers=uniform),
)

INTERNAL = Method(
    name="internal",
    paper=PAPER,
    student=SHORTER_STUDENT,
    phases=(
        Phase("layer", MATCHES, epochs=1, for_each_layer=up_to_each_layer),
        Phase("task", LABELS),
    ),
)

INTERNAL_PROGRESSIVE = Method(
    name="internal-progressive",
    paper=PAPER,
    student=SHORTER_STUDENT,
    phases=(
        Phase("layer", MATCHES, epochs=1, for_each_layer=each_layer_alone),
        Phase("task", LABELS),
    ),
)

INTERNAL_ALL = Method(
    name="internal-all",
    paper=PAPER,
    student=SHORTER_STUDENT,
    phases=one_phase(*MATCHES, *LABELS),
)
