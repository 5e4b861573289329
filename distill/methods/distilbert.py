"""DistilBERT, task stage (Sanh et al. 2019, arXiv 1910.01108).

Student: the DistilBERT class, no token-type embeddings and no pooler, initialised from
alternating teacher layers (12 -> 6 takes 0, 2, 4, 7, 9, 11, as the published checkpoint did).
Loss: soft labels with T squared, hard labels, and the cosine of the last hidden states over real
tokens (the paper's triple loss, section 2, with the task's labels in the place of masked words).
Departures: the paper distils during pre-training with weights 5, 2 and 1; on a task with labels
soft and hard weigh the same here (the weights of its SQuAD run, section 3.2), T is 2.
The teacher's first token-type vector is added to the position table instead of being dropped, so
that a student of full depth gives the teacher's own hidden states.
"""

from __future__ import annotations

from distill.layer_maps import last
from distill.losses import hidden_cosine
from distill.methods.method import Method, one_phase
from distill.students import distilbert_student
from distill.terms import HardLabels, Match, SoftLabels

__all__ = ["DISTILBERT"]

DISTILBERT = Method(
    name="distilbert",
    summary="soft labels, hard labels and hidden-state cosine on a DistilBERT student",
    paper="Sanh et al. 2019, arXiv 1910.01108",
    student=distilbert_student,
    phases=one_phase(
        SoftLabels(weight=0.5, temperature=2.0),
        HardLabels(weight=0.5),
        Match("cosine", 0.5, "hidden_states", hidden_cosine, layers=last),
    ),
)
