"""BERT-of-Theseus."""

from __future__ import annotations

from dataclasses import replace

from distill.losses.terms import HardLabels
from distill.methods.method import Method, Phase, TrainingModuleKind
from distill.students.student import SHORTER_STUDENT

REPLACING_EPOCHS = 5

REPLACING = TrainingModuleKind(
    "distill.methods.training_modules:Replacing", uses_teacher_layers=True
)
HALF_REPLACING = replace(REPLACING, place="distill.methods.training_modules:HalfReplacing")
REPLACED = replace(REPLACING, place="distill.methods.training_modules:Replaced")
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
