"""DistilBERT."""

from __future__ import annotations

from distill.losses.functions import hidden_cosine
from distill.losses.terms import HardLabels, MaskedWords, Match, SoftLabels, SoftWords, last
from distill.methods.method import General, Method, Phase, one_phase
from distill.students.student import DISTILBERT_STUDENT

DISTILBERT = Method(
    name="distilbert",
    paper="Sanh et al. 2019, arXiv 1910.01108",
    student=DISTILBERT_STUDENT,
    start_layers="alternating",
    phases=one_phase(
        SoftLabels(weight=0.5, temperature=2.0),
        HardLabels(weight=0.5),
        Match("cosine", 0.5, "hidden_states", hidden_cosine, layers=last),
    ),
    general=General(
        phases=(
            Phase(
                "corpus",
                (
                    SoftWords(weight=5.0, temperature=2.0),
                    MaskedWords(weight=2.0),
                    Match("cosine", 1.0, "hidden_states", hidden_cosine, layers=last),
                ),
                masked=True,
            ),
        ),
        settings={
            "learning_rate": 5e-4,
            # a score for each word of the vocabulary, of each token, twice
            "tokens_per_batch": 2048,
        },
    ),
)
