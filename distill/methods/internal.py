"""Internal-representation distillation (Aguilar et al. 2019, arXiv 1910.03723).

Student: the teacher's own class, started from evenly spread teacher layers, which are matched.
Loss: of each matched layer, the KL divergence of the attention distributions (eq. 2) and one
minus the cosine of the [CLS] states (eq. 3); soft labels and hard labels teach the classifier
(eq. 1). The paper has three orders (section 3.3), a method each:
`internal` is its stacked internal distillation (SID): the layers are matched one after another
from the lowest up, a phase each, and a phase keeps the layers below it; then the classifier learns.
`internal-progressive` is its progressive internal distillation (PID): likewise, but a phase
matches its own layer alone.
`internal-all` is its internal distillation of all layers: one phase, in which all layers are
matched and the classifier learns too.
Not all of the paper was available: that the classifier learns beside the layers in `internal-all`
is as recalled, and so is the first departure.
Departures: a layer's turn ends after its epochs (one by default), where the paper ends it earlier
once the cosine loss is low enough; what is below a layer goes on learning in its turn, as gradients
reach it; the divergence is over the real tokens of each text; T is 1, as in eq. 1, and soft and
hard labels weigh the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distill.losses import attention_divergence, sentence_cosine
from distill.losses.layer_maps import uniform
from distill.losses.terms import HardLabels, Match, SoftLabels
from distill.methods.method import Method, Phase, one_phase
from distill.students import shorter_student

__all__ = ["INTERNAL", "INTERNAL_ALL", "INTERNAL_PROGRESSIVE"]

PAPER = "Aguilar et al. 2019, arXiv 1910.03723"
LABELS = (SoftLabels(0.5, temperature=1.0), HardLabels(0.5))


def _matches(**chosen: Any) -> tuple[Match, Match]:
    """Return the terms of the layers that are chosen by `up_to` or `only`; of all by default."""
    return (
        Match("attention", 1.0, "attention_scores", attention_divergence, layers=uniform, **chosen),
        Match("sentence", 1.0, "sentence_states", sentence_cosine, layers=uniform, **chosen),
    )


def _in_turn(
    matches: Callable[[int], tuple[Match, Match]],
) -> Callable[[int], tuple[Phase, ...]]:
    """Return the phases by depth: one for each layer from the lowest, then the classifier's."""

    def phases(layers: int) -> tuple[Phase, ...]:
        turns = range(1, layers + 1)
        single = (Phase(f"layer-{layer}", matches(layer), epochs=1) for layer in turns)
        return (*single, Phase("task", LABELS))

    return phases


INTERNAL = Method(
    name="internal",
    paper=PAPER,
    builder=shorter_student,
    phases=_in_turn(lambda layer: _matches(up_to=layer)),
)

INTERNAL_PROGRESSIVE = Method(
    name="internal-progressive",
    paper=PAPER,
    builder=shorter_student,
    phases=_in_turn(lambda layer: _matches(only=layer - 1)),
)

INTERNAL_ALL = Method(
    name="internal-all",
    paper=PAPER,
    builder=shorter_student,
    phases=one_phase(*_matches(), *LABELS),
)
