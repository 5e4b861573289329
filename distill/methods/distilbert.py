"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108).

Student: the DistilBERT class, no token-type embeddings and no pooler, initialised from evenly
spread teacher layers. 12 -> 6 takes 0, 2, 4, 7, 9 and 11, counted from 0, as the published
checkpoint did: of all layers only the last are matched, and both choices have it.
On a corpus, as the paper: both read texts with 15 % of the words masked, and the loss is 5 times
the soft labels over the vocabulary with T = 2, of every real token, 2 times the cross-entropy of
the masked words, and 1 time the cosine of the last hidden states of real tokens (section 2; the
weights are the published code's). The head starts as the teacher's. Learning rate 5e-4, 3 epochs.
On a task: soft labels with T squared, hard labels, and the same cosine.
Departures: on a task soft and hard labels weigh the same (the weights of its SQuAD run, section
3.2), T is 2. On a corpus words are masked with equal chances; the code prefers rare ones.
The teacher's first token-type vector is added to the position table instead of being dropped, so
that a student of full depth gives the teacher's own hidden states. A teacher of relative positions
(MPNet), which DistilBERT has none of, gets a student of its own class.
"""

from __future__ import annotations

from distill.losses import hidden_cosine
from distill.losses.layer_maps import last
from distill.losses.terms import HardLabels, MaskedWords, Match, SoftLabels, SoftWords
from distill.methods.method import General, Method
from distill.methods.phase import Phase, one_phase
from distill.students import DISTILBERT_STUDENT

__all__ = ["DISTILBERT"]

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
