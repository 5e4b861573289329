"""A comparison written by hand with all that a report can show, and names and texts of an enemy."""

from __future__ import annotations

import numpy as np
import pytest

from bertender.comparison.records import (
    Ancestor,
    Comparison,
    ComparisonRow,
    Confused,
    Disagreement,
    Percentiles,
    PrunedHeads,
    Size,
)
from bertender.core.findings import PartLikeness, ProductCheck, Reliability, ReliabilityBin
from bertender.metrics.metric import AllScores, LabelScore, Score
from tests.comparison.rows import STUDENT, TEACHER, compared, conditions

LABEL = "<img src=x onerror=\"document.title='broken'\">"
TEXT = "dull </script><script>document.title = 'broken'</script> <!-- and 'quoted' \u202etxet"
LONG = "a\u202e \u05d0\u05d1 " + "x" * 200
LABELS = ("negative", LABEL)
LENGTHS = tuple(tuple(tuple(range(4, 24)) for _ in range(2)) for _ in range(2))
"""Of timed texts: processes x rounds x texts."""

PRUNED = PrunedHeads(
    layers=(0, 2), importance=((0.25, 1.0, 0.0), (0.5, 0.125, 0.75)), kept=((1,), (0, 2))
)
TEACHER_MADE = Ancestor(
    place="runs/teacher",
    digest="a" * 64,
    stage="finetune",
    kind="torch",
    precision="float32",
    config={"teacher": "runs/encoder", "epochs": 2, "learning_rate": 2e-4},
    source={"task": "sst2", "max_train": 2000, "select": 0.1},
    versions={"torch": "2.13.0"},
)
STUDENT_MADE = Ancestor(
    place="runs/the student",
    digest="b" * 64,
    parent="a" * 64,
    stage="distill",
    kind="torch",
    precision="float32",
    config={"layers": 3, "no_dropout": True},
    source=TEACHER_MADE.source,
    versions={"torch": "2.13.0"},
)

RELIABILITY = Reliability(
    n=80,
    ece=0.05,
    brier=0.1,
    nll=0.3,
    bins=(
        ReliabilityBin(low=0.6, high=0.67, count=30, confidence=0.64, right=0.5),
        ReliabilityBin(low=0.93, high=1.0, count=50, confidence=0.97, right=0.96),
    ),
)


def scored(value: float) -> Score:
    return Score(metric="accuracy", value=value, low=value - 0.02, high=value + 0.02, n=872)


def row(name: str, value: float, ms: float, mb: float, **changes: object) -> ComparisonRow:
    """A row with a score, a median time and a size."""
    single = [[[ms * length / 13 for length in texts] for texts in rounds] for rounds in LENGTHS]
    times = Percentiles(p50_ms=ms, p95_ms=2 * ms, p99_ms=3 * ms)
    size = int(mb * 1e6)
    one = LabelScore(precision=value, recall=value, f1=value, actual=9, predicted=9)
    values = {
        "name": name,
        "score": scored(value),
        "scores": AllScores(scores=(scored(value),), by_label=dict.fromkeys(LABELS, one)),
        "size": Size(parameters=9, model_size_bytes=size, artifact_size_bytes=size),
        "latency": TEACHER.latency.model_copy(
            update={"single": times, "single_ms": np.array(single).tolist()}
        ),
        "confusion": (
            Confused(truth=0, predicted=0, texts=60),
            Confused(truth=1, predicted=1, texts=50),
            Confused(truth=0, predicted=1, texts=20),
        ),
        **changes,
    }
    return STUDENT.model_copy(update=values)


@pytest.fixture
def rich() -> Comparison:
    apart = Disagreement(text=TEXT, truth="negative", first="negative", own=LABEL, distance=2.5)
    noise = PartLikeness(kind="product", figures={"outputs_snr_db": 19.5, "outputs_gain": 1.0})
    lineage = (STUDENT_MADE, TEACHER_MADE)
    return compared(
        row(
            "teacher",
            0.893,
            9.9,
            91.6,
            change=None,
            parity=None,
            lineage=(TEACHER_MADE,),
            reliability=RELIABILITY,
        ),
        row("student", 0.885, 3.1, 70.0, disagreements=(apart,), lineage=lineage),
        row(
            f"int8 {LABEL} {LONG}",
            0.880,
            1.7,
            17.6,
            disagreements=(apart,),
            pruned=PRUNED,
            products=ProductCheck(checked=2, worst={"layer.0/MatMul": noise}),
        ),
        circumstances=conditions(labels=LABELS),
        timed_lengths=LENGTHS,
    )
