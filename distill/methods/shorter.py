"""Methods whose student is the teacher's own class with fewer layers: three papers.

**Patient knowledge distillation** (Sun et al. 2019, arXiv 1908.09355), `pkd`.
Student: it starts from the first layers, as in the paper (section 4.2), although later ones are
matched. The authors take them from the encoder before fine-tuning, with a new classifier:
`--student ENCODER --layers 6` does that. The default takes them from the fine-tuned teacher, with
its classifier, like the other methods: it needs no second model and no original encoder.
Loss: (1 - a) hard labels + a soft labels + b patience, eq. 8. Patience is the squared difference
of [CLS] states of length one (eq. 7) between student layers 1 to M-1 and every k-th teacher layer
(PKD-Skip); `--layer-map last-between` matches the teacher's last layers instead (PKD-Last).
a = 0.7, T = 10, b = 500, batch 32 and 4 epochs are the published code's. Its b applies to a mean
over the width, as here. Its soft labels are a mean over classes and ours a sum, as in eq. 4, so
that ours weigh more by a factor of the number of classes.
The learning rate is that of all methods, 5e-5, the largest of the paper's grid. The published
code's 1e-5 is for the 67,000 texts of SST-2: on 4,000 of them, a student of three of six layers
predicted one label for all texts (accuracy 0.509). At 5e-5 it scored 0.819, from the authors' start
0.797, and its teacher 0.830.

**Internal-representation distillation** (Aguilar et al. 2019, arXiv 1910.03723).
Student: it starts from evenly spread teacher layers, the matched ones.
Loss: for each matched layer, the KL divergence of the attention distributions (eq. 2) and one
minus the cosine of the [CLS] states (eq. 3); for the classifier, soft and hard labels (eq. 1). The
paper has three orders (section 3.3), each a method here:
`internal`, stacked internal distillation (SID): one phase per layer, from the lowest up, which also
matches the layers below; then the classifier learns.
`internal-progressive`, progressive internal distillation (PID): the same, but a phase matches its
own layer alone.
`internal-all`, internal distillation of all layers: one phase, in which all layers are matched and
the classifier learns too.
Not all of the paper was available: joint training of classifier and layers in `internal-all` is as
recalled, and so is the first departure.
Departures: a layer's phase ends after its epochs (one by default), where the paper ends it earlier
once the cosine loss is low enough. Layers below keep learning, since gradients reach them. The
divergence is over the real tokens of each text. T is 1, as in eq. 1, and soft and hard labels have
equal weight.

**BERT-of-Theseus** (Xu et al. 2020, arXiv 2002.02925): the student replaces the teacher module by
module. The predecessor's layers are grouped into as many modules as the successor has layers. In
each batch each module is the successor's layer with probability p, else the predecessor's layers
(eq. 3 and 4). The loss is the task's alone. Only successor layers learn: embeddings, pooler,
classifier and predecessor layers are frozen, with gradients flowing through.
Student: the predecessor's first layers (section 4.2); the result is a plain shorter model.
`theseus`: p grows linearly from 0.3 (eq. 5 with b = 0.3) to 1 after two thirds of the steps, as
with the published rate for MRPC (0.0006 a step); after that only the successor runs.
`theseus-constant`: p = 0.5, then a phase with the successor alone (section 3.2).
Epochs are the published code's. Its learning rate, 2e-5, is for full training sets; a few thousand
texts need 5e-5, the rate of all methods here. Three of six layers scored 0.796 after 4 epochs on
4,000 texts of SST-2 (teacher 0.830).
"""

from __future__ import annotations

from distill.losses.terms import (
    HardLabels,
    Match,
    SoftLabels,
    attention_divergence,
    normalised_sentence_mse,
    sentence_cosine,
    skip,
    uniform,
)
from distill.methods.method import LayerPhases, Method, Phase, one_phase
from distill.students import ShorterStudent

PKD = Method(
    name="pkd",
    summary="soft and hard labels, and patience: [CLS] states of every k-th teacher layer",
    paper="Sun et al. 2019, arXiv 1908.09355",
    student=ShorterStudent(),
    start_layers="first",
    phases=one_phase(
        SoftLabels(weight=0.7, temperature=10.0),
        HardLabels(weight=0.3),
        Match("patience", 500.0, "sentence_states", normalised_sentence_mse, layers=skip),
    ),
    settings={"epochs": 4},
)


AGUILAR = "Aguilar et al. 2019, arXiv 1910.03723"
INNER = (
    Match("attention", 1.0, "attention_scores", attention_divergence, layers=uniform),
    Match("sentence", 1.0, "sentence_states", sentence_cosine, layers=uniform),
)
LABELS = (SoftLabels(0.5, temperature=1.0), HardLabels(0.5))

INTERNAL = Method(
    name="internal",
    summary="attention and [CLS] states layer upon layer from the lowest, then soft, hard labels",
    paper=AGUILAR,
    student=ShorterStudent(),
    phases=(LayerPhases("layer", INNER, epochs=1), Phase("task", LABELS)),
)

INTERNAL_PROGRESSIVE = Method(
    name="internal-progressive",
    summary="as `internal`, with one layer at a time: those below are not matched any more",
    paper=AGUILAR,
    student=ShorterStudent(),
    phases=(LayerPhases("layer", INNER, epochs=1, keeps_lower=False), Phase("task", LABELS)),
)

INTERNAL_ALL = Method(
    name="internal-all",
    summary="attention and [CLS] states of all layers at once, with soft and hard labels",
    paper=AGUILAR,
    student=ShorterStudent(),
    phases=one_phase(*INNER, *LABELS),
)


TASK = (HardLabels(weight=1.0),)

THESEUS = Method(
    name="theseus",
    summary="the teacher's layers are replaced by chance, more and more; labels alone",
    paper="Xu et al. 2020, arXiv 2002.02925",
    student=ShorterStudent(),
    start_layers="first",
    phases=(Phase("task", TASK, training_module="replacing", uses_teacher_layers=True),),
    settings={"epochs": 15},
)

THESEUS_CONSTANT = Method(
    name="theseus-constant",
    summary="half of the teacher's layers are replaced by chance, then all; labels alone",
    paper="Xu et al. 2020, arXiv 2002.02925",
    student=ShorterStudent(),
    start_layers="first",
    phases=(
        Phase(
            "replacing",
            TASK,
            epochs=5,
            training_module="half replacing",
            uses_teacher_layers=True,
        ),
        Phase("successor", TASK, training_module="replaced", uses_teacher_layers=True),
    ),
    settings={"epochs": 10},
)
