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

Measured by `bertender distill --method static --max-train N --select 0.1` on the texts set apart,
one seed, teachers of 6 layers; differences below 0.01 are within noise. What was changed in the
code, one thing at a time:

    SST-2, N = 4,000, a = 0.001             layer of 256   linear
    each token alone                               0.850    0.845
    the teacher's word embeddings                  0.847    0.831
    alone, and a = 0.1                             0.850    0.832
    alone, and equal weights                       0.848    0.832
    alone, soft labels at T = 1, at T = 2   0.853, 0.850        -

    SNIPS intents, N = 700, tokens alone    layer of 256   linear
    a = 0.001                                      0.916    0.783
    a = 0.01                                       0.962        -
    a = 0.1                                        0.966    0.868
    equal weights                                  0.966    0.870
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
