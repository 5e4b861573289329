"""MiniLM."""

from __future__ import annotations

from distill.losses.functions import attention_divergence
from distill.losses.signals import Signal
from distill.losses.terms import HardLabels, Match, Relations, Term, last
from distill.methods.method import General, Method, Phase, one_phase
from distill.students.student import ANY_WIDTH_STUDENT

RELATION_HEADS = 48
INTERMEDIATE_EPOCHS = 3


def _v2(name: str, signal: Signal) -> Relations:
    return Relations(name, 1 / 3, signal, layers=last, relation_heads=RELATION_HEADS)


RELATIONS = (
    Match("attention", 1.0, "attention_scores", attention_divergence, layers=last),
    Relations("values", 1.0, "values", layers=last),
)
RELATIONS_V2 = (_v2("queries", "queries"), _v2("keys", "keys"), _v2("values", "values"))


def _then_labels(relations: tuple[Term, ...]) -> tuple[Phase, ...]:
    settings = {"learning_rate": 5e-4}
    first = Phase("relations", relations, epochs=INTERMEDIATE_EPOCHS, settings=settings)
    return (first, *one_phase(HardLabels(weight=1.0)))


MINILM = Method(
    name="minilm",
    paper="Wang et al. 2020, arXiv 2002.10957",
    student=ANY_WIDTH_STUDENT,
    phases=_then_labels(RELATIONS),
    general=General(one_phase(*RELATIONS), {"learning_rate": 5e-4}),
)

MINILM_V2 = Method(
    name="minilm-v2",
    paper="Wang et al. 2021, arXiv 2012.15828",
    student=ANY_WIDTH_STUDENT,
    phases=_then_labels(RELATIONS_V2),
    general=General(one_phase(*RELATIONS_V2), {"learning_rate": 6e-4}),
)
