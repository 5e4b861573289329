"""BERT-of-Theseus (Xu et al. 2020, arXiv 2002.02925): the student takes over module by module.

The predecessor's layers are cut into as many modules as the successor has layers. In each batch
each module is the successor's layer with probability p, else the predecessor's layers (eq. 3 and
4). The loss is the task's alone. Only successor layers learn: embeddings, pooler, classifier and
predecessor stay as the predecessor had them, with gradients flowing through.
Student: the predecessor's own class, its first layers (section 4.2); what remains in the end is a
plain shorter model.
`theseus`: p grows linearly from 0.3 (eq. 5 with b = 0.3) and reaches 1 after two thirds of the
steps, which is where the published rate for MRPC (0.0006 a step) brings it; from there on the
successor is alone.
`theseus-constant`: p = 0.5, then a phase with the successor alone (section 3.2).
Epochs are the published code's. Its rate, 2e-5, is for all texts of a task: the rate of all methods
here, 5e-5, is needed on a few thousand. Three of six layers scored 0.796 after 4 epochs on 4,000
texts of SST-2 (teacher 0.830).
"""

from __future__ import annotations

from dataclasses import replace

from distill.losses.terms import HardLabels
from distill.methods.method import Method
from distill.methods.phase import Phase, TrainingModuleKind
from distill.students import SHORTER_STUDENT

__all__ = ["THESEUS", "THESEUS_CONSTANT"]

REPLACING_EPOCHS = 5

REPLACING = TrainingModuleKind("distill.methods.theseus_module:Replacing", uses_teacher_layers=True)
HALF_REPLACING = replace(REPLACING, place="distill.methods.theseus_module:HalfReplacing")
REPLACED = replace(REPLACING, place="distill.methods.theseus_module:Replaced")
TASK = (HardLabels(weight=1.0),)

THESEUS = Method(
    name="theseus",
    paper="Xu et al. 2020, arXiv 2002.02925",
    student=SHORTER_STUDENT,
    start_layers="first",
    phases=(Phase("task", TASK, training_module=REPLACING),),
    settings={"epochs": 15},
)

THESEUS_CONSTANT = Method(
    name="theseus-constant",
    paper="Xu et al. 2020, arXiv 2002.02925",
    student=SHORTER_STUDENT,
    start_layers="first",
    phases=(
        Phase("replacing", TASK, epochs=REPLACING_EPOCHS, training_module=HALF_REPLACING),
        Phase("successor", TASK, training_module=REPLACED),
    ),
    settings={"epochs": 10},
)
