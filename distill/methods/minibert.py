"""MiniBERT (Tsai et al. 2019, arXiv 1909.00100): a small tagger on its teacher's vocabulary.

Student: a BERT of 3 layers, 256 wide, over the teacher's tokens; one that is named by `--student`
keeps its layers. Loss: the teacher's softened distribution at each word; where each text has one
label, its distribution for the text.
The paper was not available: depth, width, the shared vocabulary and the soft labels are as recalled
from it. Heads of 64, a feed-forward part of 1,024 and T = 2 are choices made here.
Departures: the paper's student was pre-trained as BERT is, on the teacher's languages, which
`--student` does for one made by `bertender pretrain`; without it the embeddings are projections
of the teacher's and the layers are random. The paper learns from soft labels; here hard labels
weigh the same where there are some (`--weights hard=0` leaves them out).
"""

from __future__ import annotations

from distill.losses.terms import HardLabels, SoftLabels
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import MINIBERT_STUDENT

__all__ = ["MINIBERT"]

MINIBERT = Method(
    name="minibert",
    paper="Tsai et al. 2019, arXiv 1909.00100",
    student=MINIBERT_STUDENT,
    phases=one_phase(SoftLabels(weight=0.5, temperature=2.0), HardLabels(weight=0.5)),
    settings={"epochs": 10, "learning_rate": 5e-4},
)
