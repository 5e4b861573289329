"""Toy tasks of several heads: a label and tags of a sentence; a label, and a set or a number, of a
text."""

from __future__ import annotations

from bertender.metrics.metric import NO_LABEL, HeadTargets
from bertender.tasks.task import Split, Task
from tests.toy_tagging import TASK as TAGGING
from tests.toys import number_task, set_task

HAS_COUNT = ("with", "without")


def _joint(split: Split) -> Split:
    """Add a label: whether a sentence has a number of several digits."""
    counts = [not any(word.isdecimal() for word in words) for words in split.examples]
    pairs = zip(counts, split.label_ids, strict=True)
    return Split(split.examples, tuple(HeadTargets((int(none), tags)) for none, tags in pairs))


def _topics(split: Split, every: int = 0) -> Split:
    """Add a label: how many words a text has; one of `every` examples has no set."""
    sizes = [int(len(text.split()) > 2) for (text,) in split.examples]
    targets = tuple(
        HeadTargets((size, (NO_LABEL,) if every and not row % every else own))
        for row, (size, own) in enumerate(zip(sizes, split.label_ids, strict=True))
    )
    return Split(split.examples, targets)


def _rated(split: Split) -> Split:
    """Return texts with stars from 1 to 5, in halves, and a label: how many words a text has."""
    sizes = [int(len(text.split()) > 3) for (text,) in split.examples]
    stars = [1 + round((number - 200) / 5) / 2 for number in split.label_ids]
    return Split(split.examples, tuple(map(HeadTargets, zip(sizes, stars, strict=True))))


JOINT = Task(
    "toy",
    (
        *(f"intent:{label}" for label in HAS_COUNT),
        *(f"slots:{label}" for label in TAGGING.labels),
    ),
    "intent:accuracy+slots:entity_f1",
    ("words",),
    _joint(TAGGING.train),
    _joint(TAGGING.dev),
    problem_type="intent:single_label_classification,slots:token_classification",
)
SETS = set_task()
TWO_OF_TEXTS = Task(
    "toy",
    (*(f"length:{label}" for label in ("short", "long")), *(f"topics:{x}" for x in SETS.labels)),
    "length:accuracy+topics:micro_f1",
    ("text",),
    _topics(SETS.train, every=5),
    _topics(SETS.dev),
    problem_type="length:single_label_classification,topics:multi_label_classification",
)
NUMBERS = number_task()
RATED = Task(
    "toy",
    ("length:short", "length:long", "stars:number"),
    "length:accuracy+stars:pearson",
    ("text",),
    _rated(NUMBERS.train),
    _rated(NUMBERS.dev),
    problem_type="length:single_label_classification,stars:regression",
)
