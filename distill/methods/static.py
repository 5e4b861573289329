"""A static student, as model2vec makes them (Minish Lab, Tulkens and van Dongen 2024).

Student: one vector of 256 and one weight a token; the weighted mean of a text's vectors goes
through a layer of 256 and ReLU, or straight to the logits with `--feed-forward-size 0`; dropout
0.1. Special tokens have no part. The texts of a pair are read apart by the same table and joined
as [u, v, u * v, |u - v|].
Start, as in model2vec: a token's vector is the mean of the teacher's last hidden states of a text
of that token alone, in the strongest directions of all of them (PCA), here of variance 1. Its
weight is a / (a + p) for its share p of the training texts (SIF, Arora et al. 2017).
Loss: mean squared error of the logits, and no labels; `--weights hard=1` adds them.
Departures: model2vec ranks tokens by their place in the vocabulary, where shares are counted here
and a is 0.01 instead of its 0.0001, since the frequent words of one task's texts may be those that
tell its labels apart; training moves the weights.
Measured by `bertender distill --method static --task sst2 --max-train 4000 --select 0.1`, the score
of 2,000 texts set apart, a teacher of 6 layers:
START_TABLE
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
