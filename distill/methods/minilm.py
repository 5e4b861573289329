"""MiniLM (Wang et al. 2020, arXiv 2002.10957) and MiniLMv2 (Wang et al. 2021, arXiv 2012.15828).

Student: any depth and width. v1 needs the teacher's number of heads; v2 does not, since it splits
both models' vectors into relation heads. A student of the teacher's width starts from evenly spread
layers, so that its last layer is a copy of the matched one; others start from random weights.
On a corpus: the teacher's last layer is matched by the student's last. v1: attention distributions
(eq. 6) and value relations (eq. 7 to 9), of equal weight, at 5e-4. v2: query, key and value
relations with 48 relation heads, a third each (eq. 5 and 6), at 6e-4.
On a task: the same for 3 epochs on the task's texts (and `--unlabelled`), then fine-tuning on the
labels, as in the papers.
Departures: the papers run 400,000 steps on a corpus. The v2 paper takes an upper-middle layer of
large teachers (21st of 24); here it is always the last, as for its base teachers.
"""

from __future__ import annotations

from distill.losses.signals import Signal
from distill.losses.terms import HardLabels, Match, Relations, Term, attention_divergence, last
from distill.methods.method import General, Method, Phase, one_phase
from distill.methods.tinybert import AnyWidthStudent


def _then_labels(relations: tuple[Term, ...]) -> tuple[Phase, ...]:
    first = Phase("relations", relations, epochs=3, settings={"learning_rate": 5e-4})
    return (first, *one_phase(HardLabels(weight=1.0)))


RELATIONS = (
    Match("attention", 1.0, "attention_scores", attention_divergence, layers=last),
    Relations("values", 1.0, "values", layers=last),
)

MINILM = Method(
    name="minilm",
    summary="attention and value relations of the teacher's last layer, then labels",
    paper="Wang et al. 2020, arXiv 2002.10957",
    student=AnyWidthStudent(),
    phases=_then_labels(RELATIONS),
    general=General(
        summary="attention and value relations of the teacher's last layer",
        phases=one_phase(*RELATIONS),
        settings={"learning_rate": 5e-4},
    ),
)

SIGNALS: tuple[Signal, ...] = ("queries", "keys", "values")
RELATIONS_V2 = tuple(
    Relations(signal, 1 / 3, signal, layers=last, relation_heads=48) for signal in SIGNALS
)

MINILM_V2 = Method(
    name="minilm-v2",
    summary="query, key and value relations of the teacher's last layer, then labels",
    paper="Wang et al. 2021, arXiv 2012.15828",
    student=AnyWidthStudent(),
    phases=_then_labels(RELATIONS_V2),
    general=General(
        summary="query, key and value relations of the teacher's last layer",
        phases=one_phase(*RELATIONS_V2),
        settings={"learning_rate": 6e-4},
    ),
)
