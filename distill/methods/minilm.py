"""MiniLM (Wang et al. 2020, arXiv 2002.10957) and MiniLMv2 (Wang et al. 2021, arXiv 2012.15828).

Student: any depth and width; v1 wants as many heads as the teacher has, v2 cuts both models'
vectors into relation heads and does not. As wide as the teacher it starts from evenly spread
layers, narrower from random weights.
Phase 1: of the teacher's last layer alone, into the student's last. v1: attention distributions
(eq. 6) and value relations (eq. 7 to 9), weighing the same. v2: query, key and value relations
with 48 relation heads, a third each (eq. 5 and 6).
Phase 2: fine-tuning on the labels, as the papers do with their students.
Departures: the papers run phase 1 on a corpus for 400,000 steps; here it runs on the task's texts
(and those of `--unlabelled`). The v2 paper takes an upper-middle layer of large teachers (21st of
24); this is the last, as for its base teachers.
"""

from __future__ import annotations

from distill.layer_maps import last
from distill.losses import attention_divergence
from distill.methods.method import Method, Phase
from distill.signals import Signal
from distill.students import any_width_student
from distill.terms import HardLabels, Match, Relations, Term

__all__ = ["MINILM", "MINILM_V2"]

RELATION_HEADS = 48
INTERMEDIATE_EPOCHS = 3


def _phases(*relations: Term) -> tuple[Phase, ...]:
    return (
        Phase("relations", relations, epochs=INTERMEDIATE_EPOCHS, settings={"learning_rate": 5e-4}),
        Phase("task", (HardLabels(weight=1.0),)),
    )


def _v2(name: str, signal: Signal) -> Relations:
    return Relations(name, 1 / 3, signal, layers=last, relation_heads=RELATION_HEADS)


MINILM = Method(
    name="minilm",
    summary="attention and value relations of the teacher's last layer, then labels",
    paper="Wang et al. 2020, arXiv 2002.10957",
    student=any_width_student,
    phases=lambda layers: _phases(
        Match("attention", 1.0, "attention_scores", attention_divergence, layers=last),
        Relations("values", 1.0, "values", layers=last),
    ),
)

MINILM_V2 = Method(
    name="minilm-v2",
    summary="query, key and value relations of the teacher's last layer, then labels",
    paper="Wang et al. 2021, arXiv 2012.15828",
    student=any_width_student,
    phases=lambda layers: _phases(
        _v2("queries", "queries"), _v2("keys", "keys"), _v2("values", "values")
    ),
)
