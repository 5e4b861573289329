"""Pre-trained distillation (Turc et al. 2019, arXiv 1908.08962): well-read students learn better.

Student: a compact model that was pre-trained on its own (`bertender pretrain`, or any encoder)
and is named by `--student`; all of its layers by default, and its own vocabulary.
Loss: soft labels at T = 1 on a transfer set without labels (section 3): the task's texts, and
those of `--unlabelled`. No hidden states are matched and no labels are read.
Departures: the paper fine-tunes some students on the labels afterwards; `bertender finetune
--teacher STUDENT` does that.
"""

from __future__ import annotations

from distill.losses.terms import SoftLabels
from distill.methods.method import Method
from distill.methods.phase import one_phase
from distill.students import PRETRAINED_STUDENT

__all__ = ["PD"]

PD = Method(
    name="pd",
    paper="Turc et al. 2019, arXiv 1908.08962",
    student=PRETRAINED_STUDENT,
    phases=one_phase(SoftLabels(weight=1.0, temperature=1.0)),
    settings={"epochs": 4, "learning_rate": 1e-4},
)
