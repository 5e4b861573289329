"""MobileBERT (Sun et al. 2020, arXiv 2004.02984), with progressive knowledge transfer.

Student: the MobileBERT class: a bottleneck around each layer, stacked feed-forward parts, scales in
the place of layer norms, relu, embeddings of 128 over three neighbouring tokens. `mobilebert` has
four feed-forward parts a layer, `mobilebert-tiny` two and a light attention (table 1). As deep as
the teacher, as each layer learns from one; fewer learn from evenly spread ones.
Phase 1 (progressive knowledge transfer): layer after layer from the lowest up, each for as long,
and one epoch each by default. Of the layer whose turn it is, feature map transfer (eq. 1, taken
apart into normalised maps, means and variances, weighing 100, 5000 and 5 over the number of layers,
as in the published code) and attention transfer (eq. 2). Lower layers learn at a tenth of the
rate, as there; higher ones do not learn yet, and dropout is off.
Phase 2: soft and hard labels at T = 1, weighing the same (eq. 3, with the task's labels instead of
masked words).
On a corpus (general distillation, the paper's own order): phase 1 on texts with masked words, then
phase 2 as in eq. 3 on these words, without the sentences' order. The result is fine-tuned, or
distilled on a task once more.
Departures: any teacher, where the paper pre-trains one with inverted bottlenecks, so that the
student is as wide as its teacher (512 in the paper) with as many heads; a student of another width
reaches it through a linear layer, one for all layers, since its layers write into one stream of
hidden states. The learning rates are ours. The layers' turns are stages of one phase, with one
optimizer: its epochs are one for each layer, so that each has the paper's equal share however deep
the student is, and `--earlier-epochs` sets how many all turns have together.
"""

from __future__ import annotations

from dataclasses import replace

from distill.losses import (
    attention_divergence,
    hidden_mean_mse,
    hidden_variance_difference,
    normalised_hidden_mse,
)
from distill.losses.layer_maps import uniform
from distill.losses.terms import HardLabels, MaskedWords, Match, SoftLabels, SoftWords
from distill.methods.method import General, Method
from distill.methods.phase import Phase, TrainingModuleKind, each_layer_in_turn, one_phase
from distill.students import MOBILEBERT_STUDENT, TINY_MOBILEBERT_STUDENT

__all__ = ["MOBILEBERT", "MOBILEBERT_TINY"]

TRANSFER_RATE = 1e-3


MAPS = Match(
    "features",
    100.0,
    "hidden_states",
    normalised_hidden_mse,
    layers=uniform,
    projected=True,
    divided_by_depth=True,
)
TRANSFER = Phase(
    "transfer",
    (
        MAPS,
        replace(MAPS, name="means", weight=5000.0, loss=hidden_mean_mse),
        replace(MAPS, name="variances", weight=5.0, loss=hidden_variance_difference),
        Match("attention", 1.0, "attention_scores", attention_divergence, layers=uniform),
    ),
    epochs=1,
    settings={"schedule": "constant", "learning_rate": TRANSFER_RATE, "no_dropout": True},
    training_module=TrainingModuleKind("distill.methods.mobilebert_module:LayerAfterLayer"),
    for_each_layer=each_layer_in_turn,
)
LABELS = (SoftLabels(0.5, temperature=1.0), HardLabels(0.5))
WORDS = (SoftWords(0.5, temperature=1.0, masked_alone=True), MaskedWords(0.5))

MOBILEBERT = Method(
    name="mobilebert",
    paper="Sun et al. 2020, arXiv 2004.02984",
    student=MOBILEBERT_STUDENT,
    phases=(TRANSFER, *one_phase(*LABELS)),
    settings={"epochs": 5, "learning_rate": 5e-4},
    general=General(
        phases=(replace(TRANSFER, masked=True), Phase("words", WORDS, masked=True)),
        settings={"learning_rate": 5e-4},
    ),
)

MOBILEBERT_TINY = replace(MOBILEBERT, name="mobilebert-tiny", student=TINY_MOBILEBERT_STUDENT)
