"""A smaller vocabulary."""

from __future__ import annotations

from distill.losses.terms import (
    HardLabels,
    MaskedWords,
    MixedWords,
    ProjectedWeights,
    SoftLabels,
    uniform,
)
from distill.methods.method import General, Method, Phase, TrainingModuleKind, one_phase
from distill.students.student import OWN_VOCABULARY_STUDENT, PRETRAINED_STUDENT

HIDDEN_SIZE = 192


SMALL_VOCAB = Method(
    name="small-vocab",
    paper="Zhao et al. 2019, arXiv 1909.11687v1",
    student=PRETRAINED_STUDENT,
    phases=one_phase(HardLabels(weight=1.0), SoftLabels(weight=0.0, temperature=1.0)),
    settings={"epochs": 4, "learning_rate": 1e-4},
    general=General(
        student=OWN_VOCABULARY_STUDENT,
        phases=(
            Phase(
                "dual",
                (
                    MaskedWords(weight=1.0),
                    MixedWords(weight=1.0),
                    ProjectedWeights("up", 1.0, layers=uniform, projects_student=True),
                    ProjectedWeights("down", 0.0, layers=uniform, projects_student=False),
                ),
                masked=True,
                training_module=TrainingModuleKind("distill.methods.training_modules:DualTraining"),
            ),
        ),
        settings={"learning_rate": 5e-4, "hidden_size": HIDDEN_SIZE},
    ),
)
