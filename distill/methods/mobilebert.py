"""MobileBERT."""

from __future__ import annotations

from dataclasses import replace

from distill.losses.functions import (
    attention_divergence,
    hidden_mean_mse,
    hidden_variance_difference,
    normalised_hidden_mse,
)
from distill.losses.terms import HardLabels, MaskedWords, Match, SoftLabels, SoftWords, uniform
from distill.methods.method import (
    General,
    Method,
    Phase,
    TrainingModuleKind,
    each_layer_in_turn,
    one_phase,
)
from distill.students.student import MOBILEBERT_STUDENT, TINY_MOBILEBERT_STUDENT

TRANSFER_RATE = 1e-3


MAPS = Match(
    "features",
    100.0,
    "hidden_states",
    normalised_hidden_mse,
    layers=uniform,
    projected=True,
    divided_by_depth=True,
)
TRANSFER = Phase(
    "transfer",
    (
        MAPS,
        replace(MAPS, name="means", weight=5000.0, loss=hidden_mean_mse),
        replace(MAPS, name="variances", weight=5.0, loss=hidden_variance_difference),
        Match("attention", 1.0, "attention_scores", attention_divergence, layers=uniform),
    ),
    epochs=1,
    settings={"schedule": "constant", "learning_rate": TRANSFER_RATE, "no_dropout": True},
    training_module=TrainingModuleKind("distill.methods.training_modules:LayerAfterLayer"),
    for_each_layer=each_layer_in_turn,
)
LABELS = (SoftLabels(0.5, temperature=1.0), HardLabels(0.5))
WORDS = (SoftWords(0.5, temperature=1.0, masked_alone=True), MaskedWords(0.5))

MOBILEBERT = Method(
    name="mobilebert",
    paper="Sun et al. 2020, arXiv 2004.02984",
    student=MOBILEBERT_STUDENT,
    phases=(TRANSFER, *one_phase(*LABELS)),
    settings={"epochs": 5, "learning_rate": 5e-4},
    general=General(
        phases=(replace(TRANSFER, masked=True), Phase("words", WORDS, masked=True)),
        settings={"learning_rate": 5e-4},
    ),
)

MOBILEBERT_TINY = replace(MOBILEBERT, name="mobilebert-tiny", student=TINY_MOBILEBERT_STUDENT)
