"""A BiLSTM student (Tang et al. 2019, arXiv 1903.12136).

Student: one bidirectional LSTM over word embeddings of 300, 150 wide in each direction, whose last
states go through a layer of 200 and ReLU; dropout 0.1. The texts of a pair are read apart by the
same weights (siamese) and joined as [h1, h2, h1 * h2, |h1 - h2|].
Loss: mean squared error of the logits, and no labels (alpha = 0). The published code adds
cross-entropy with weight 1; `--weights hard=1` does so here.
The paper trains on augmented texts: `--augmentation bilstm`, which is off by default.
Departures: words are the teacher's tokens, [CLS] and [SEP] among them, and their table starts
as the 300 strongest directions of the teacher's (a narrower one as it is), in place of
word2vec's words. AdamW at a falling rate over 10 epochs replaces Adadelta at 1.0 over 30:
on 4,000 texts of SST-2 the held-out score no longer rose after the second epoch.
"""

from __future__ import annotations

from distill.losses.terms import HardLabels, LogitMatch
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import BILSTM_STUDENT

__all__ = ["BILSTM"]


BILSTM = Method(
    name="bilstm",
    paper="Tang et al. 2019, arXiv 1903.12136",
    student=BILSTM_STUDENT,
    phases=one_phase(LogitMatch(weight=1.0), HardLabels(weight=0.0)),
    settings={"epochs": 10, "batch_size": 50, "learning_rate": 1e-3},
    augmentation="bilstm",
)
