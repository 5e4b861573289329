"""A static student, as model2vec makes them (Minish Lab, Tulkens and van Dongen 2024).

Student: one vector of 256 and one weight a token; the weighted mean of a text's vectors goes
through a layer of 256 and ReLU, or straight to the logits with `--feed-forward-size 0`; dropout
0.1. Special tokens have no part. The texts of a pair are read apart by the same table and joined
as [u, v, u * v, |u - v|].
Start, as in model2vec: a token's vector is the mean of the teacher's last hidden states of a text
of that token alone, in the strongest directions of all of them (PCA), here of variance 1. Its
weight is a / (a + p) for its share p of the training texts (SIF, Arora et al. 2017).
Loss: mean squared error of the logits, and no labels; `--weights hard=1` adds them.
Departures: model2vec takes p from a token's place in the vocabulary and a = 0.0001; here p is
counted and a is 0.1. Smaller ones weigh down what tells the labels of few texts apart.

The defaults (tokens alone, a = 0.1, a layer, logits) were chosen by one seed each on texts set
apart of SST-2 and SNIPS intents, where alternatives within 0.01 are noise.
"""

from __future__ import annotations

from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import STATIC_STUDENT

__all__ = ["STATIC"]

STATIC = Method(
    name="static",
    paper="model2vec, Tulkens and van Dongen 2024",
    student=STATIC_STUDENT,
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 5, "learning_rate": 1e-3},
)
