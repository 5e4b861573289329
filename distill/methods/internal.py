"""Internal-representation distillation (Aguilar et al. 2019, arXiv 1910.03723).

Student: the teacher's own class, started from evenly spread teacher layers, those that are matched.
Loss: of each matched layer, the KL divergence of the attention distributions (eq. 2) and one
minus the cosine of the [CLS] states (eq. 3). Progressive: the layers are matched one after
another from the lowest up, a phase each, and a phase keeps the layers below it (section 3.3,
"stacked"); then soft labels and hard labels teach the classifier (eq. 1).
Departures: the divergence is over the real tokens of each text; T is 1, as in eq. 1, and soft and
hard labels weigh the same.
"""

from __future__ import annotations

from distill.layer_maps import uniform
from distill.losses import attention_divergence, sentence_cosine
from distill.methods.method import Method, Phase
from distill.students import shorter_student
from distill.terms import HardLabels, Match, SoftLabels

__all__ = ["INTERNAL"]


def _phases(layers: int) -> tuple[Phase, ...]:
    growing = (
        Phase(
            f"layer-{highest}",
            (
                Match(
                    "attention",
                    1.0,
                    "attention_scores",
                    attention_divergence,
                    layers=uniform,
                    up_to=highest,
                ),
                Match(
                    "sentence",
                    1.0,
                    "sentence_states",
                    sentence_cosine,
                    layers=uniform,
                    up_to=highest,
                ),
            ),
            epochs=1,
        )
        for highest in range(1, layers + 1)
    )
    classifier = Phase("task", (SoftLabels(0.5, temperature=1.0), HardLabels(0.5)))
    return (*growing, classifier)


INTERNAL = Method(
    name="internal",
    summary="attention and [CLS] states layer by layer from the lowest, then soft and hard labels",
    paper="Aguilar et al. 2019, arXiv 1910.03723",
    builder=shorter_student,
    phases=_phases,
)
