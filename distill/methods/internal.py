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
Not all of the paper was available: that the classifier learns with the layers in `internal-all`
is as recalled, and so is the first departure.
Departures: a layer's turn ends after its epochs (one by default), where the paper ends it earlier
once the cosine loss is low enough; what is below a layer still learns in its turn, as gradients
reach it; the divergence is over the real tokens of each text; T is 1, as in eq. 1, and soft and
hard labels weigh the same.
"""

from __future__ import annotations

from distill.losses import attention_divergence, sentence_cosine
from distill.losses.layer_maps import uniform
from distill.losses.terms import HardLabels, Match, SoftLabels
from distill.methods.method import Method
from distill.methods.phase import Phase, each_layer_alone, one_phase, up_to_each_layer
from distill.students import SHORTER_STUDENT

__all__ = ["INTERNAL", "INTERNAL_ALL", "INTERNAL_PROGRESSIVE"]

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
