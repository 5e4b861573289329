"""Patient knowledge distillation (Sun et al. 2019, arXiv 1908.09355).

Student: the teacher's own class. It starts from its first layers, as the paper's does (section
4.2), although later ones are matched. The authors take them from the encoder before fine-tuning,
with a new classifier: `--student ENCODER --layers 6` does that. The default takes them from the
fine-tuned teacher, with its classifier, as the other methods do: no second model is needed, and a
teacher that comes without the encoder it was made from will do.
Loss: (1 - a) hard labels + a soft labels + b patience, eq. 8; patience is the squared difference
of [CLS] states of length one (eq. 7) between student layers 1 to M-1 and every k-th teacher layer
(PKD-Skip); `--layer-map last-between` matches the teacher's last layers instead (PKD-Last).
a = 0.7, T = 10, b = 500, batch 32 and 4 epochs are the published code's. Its b belongs to a mean
over the width, as here; its soft labels are a mean over the classes too, and ours a sum over them,
as in eq. 4, so that ours weigh as many times more as there are classes.
The rate is that of all methods, 5e-5, the largest of the paper's grid. The published code's 1e-5 is
for the 67,000 texts of SST-2: on 4,000 of them, a student of three of six layers predicted one
label for all texts (accuracy 0.509); at 5e-5 it scored 0.819, from the authors' start 0.797, and
its teacher 0.830.
"""

from __future__ import annotations

from distill.losses import normalised_sentence_mse
from distill.losses.layer_maps import skip
from distill.losses.terms import HardLabels, Match, SoftLabels
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import SHORTER_STUDENT

__all__ = ["PKD"]

PKD = Method(
    name="pkd",
    paper="Sun et al. 2019, arXiv 1908.09355",
    student=SHORTER_STUDENT,
    start_layers="first",
    phases=one_phase(
        SoftLabels(weight=0.7, temperature=10.0),
        HardLabels(weight=0.3),
        Match("patience", 500.0, "sentence_states", normalised_sentence_mse, layers=skip),
    ),
    settings={"epochs": 4},
)
