"""TinyBERT (Jiao et al. 2019, arXiv 1909.10351).

Student: any depth and width. As wide as the teacher it is the teacher's own class, started from
evenly spread layers, those that are matched; narrower ones are a BERT with random weights, which
need the general stage.
On a corpus (general distillation): the terms of phase 1 below, from a teacher that was not
fine-tuned; 3 epochs at 5e-5.
On a task, phase 1: embeddings and hidden states (eq. 8 and 9) through one projection shared by
all layers, and attention scores before softmax (eq. 7), student layer m from teacher layer m N / M,
summed over the layers; the learning rate stays constant, for 10 epochs by default. The projection
goes on from a general stage's, as in the published code.
Phase 2: cross-entropy with the teacher's softened distribution at T = 1, no labels (eq. 10).
The paper trains on augmented texts: `--augmentation tinybert`, which is off by default.
Departures: states as wide as the teacher's are not projected (the published code draws a square
matrix at random, so that layers copied from the teacher start far from it); padding has no part in
any mean (the published code leaves it in), the mean of the soft targets is over the batch (the
code's is over the classes too), and the teacher is in eval mode, which the code forgets.
"""

from __future__ import annotations

from distill.losses import attention_mse, hidden_mse, soft_cross_entropy
from distill.losses.layer_maps import uniform, with_embeddings
from distill.losses.terms import Match, SoftLabels
from distill.methods.method import General, Method
from distill.methods.phase import Phase, one_phase
from distill.students import ANY_WIDTH_STUDENT

__all__ = ["TINYBERT"]

INTERMEDIATE_EPOCHS = 10
TRANSFORMER = (
    Match(
        "hidden",
        1.0,
        "hidden_states",
        hidden_mse,
        layers=with_embeddings,
        over_layers="sum",
        projected=True,
    ),
    Match("attention", 1.0, "attention_scores", attention_mse, layers=uniform, over_layers="sum"),
)

TINYBERT = Method(
    name="tinybert",
    paper="Jiao et al. 2019, arXiv 1909.10351",
    student=ANY_WIDTH_STUDENT,
    phases=(
        Phase(
            "transformer",
            TRANSFORMER,
            epochs=INTERMEDIATE_EPOCHS,
            settings={"schedule": "constant", "learning_rate": 5e-5},
        ),
        Phase("prediction", (SoftLabels(weight=1.0, temperature=1.0, loss=soft_cross_entropy),)),
    ),
    settings={"epochs": 3, "learning_rate": 3e-5},
    augmentation="tinybert",
    general=General(one_phase(*TRANSFORMER), {"learning_rate": 5e-5}),
)
