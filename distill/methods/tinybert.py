"""TinyBERT."""

from __future__ import annotations

from bertender.training.heads import soft_cross_entropy
from distill.losses.functions import attention_mse, hidden_mse
from distill.losses.terms import Match, SoftLabels, uniform, with_embeddings
from distill.methods.method import General, Method, Phase, one_phase
from distill.students.student import ANY_WIDTH_STUDENT

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
