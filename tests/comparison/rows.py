"""Rows of a comparison, written by hand."""

from __future__ import annotations

from bertender.comparison.accuracy import ConstantRow
from bertender.comparison.records import (
    Ancestor,
    CompareConfig,
    Comparison,
    ComparisonRow,
    Conditions,
    Latency,
    Lengths,
    Percentiles,
    Size,
)
from bertender.core.findings import ParitySummary
from bertender.core.machine import Environment, MachineLoad, Speedup
from bertender.metrics.metric import AllScores, Change, Score


def conditions(**changes: object) -> Conditions:
    values = {
        "measured_at": "2030-01-02T03:04:05Z",
        "environment": Environment(
            python="3.11.9",
            platform="Linux",
            cpu_model="Some CPU 9000",
            cpu_flags=("avx2", "avx512_vnni"),
            cores=2,
            memory_bytes=2**33,
            gpu=None,
            versions={"bertender": "0.1.0", "torch": "2.13.0", "onnxruntime": "1.31.1"},
        ),
        "threads": 2,
        "batch_texts": 32,
        "task": "sst2",
        "metric": "accuracy",
        "labels": ("negative", "positive"),
        "n": 872,
        "task_fingerprint": "0" * 64,
        "lengths": Lengths(mean_words=19.6, max_words=47, mean_tokens=25.2, max_tokens=66),
        "config": CompareConfig(seed=4),
        "load": MachineLoad(other_work=0.004, steal=0.0),
        "source": {},
        "chosen_on": (),
    }
    return Conditions.model_validate({**values, **changes})


SCORE = Score(metric="accuracy", value=0.8934, low=0.8711, high=0.9122, n=872)

TEACHER = ComparisonRow(
    name="teacher",
    digest="a" * 64,
    kind="torch",
    family="bert",
    stage="finetune",
    precision="float32",
    seed=0,
    size=Size(parameters=22_700_000, model_size_bytes=90_900_000, artifact_size_bytes=91_600_000),
    score=SCORE,
    scores=AllScores(scores=(SCORE,), by_label={}),
    change=None,
    latency=Latency(
        name="teacher",
        single=Percentiles(p50_ms=9.951, p95_ms=14.31, p99_ms=17.94),
        batch=Percentiles(p50_ms=201.4, p95_ms=215.0, p99_ms=220.0),
        texts_per_second=158.3,
        speedup=Speedup(value=1.0, low=1.0, high=1.0),
        single_ms=(((9.951,),),),
        batch_ms=((201.4,),),
    ),
    parity=None,
    lineage=(Ancestor(place="runs/teacher", digest="a" * 64),),
)

STUDENT = TEACHER.model_copy(
    update={
        "name": "student-3-layers-distilbert-int8",
        "kind": "onnx",
        "precision": "int8",
        "change": Change(value=-0.34, low=-1.72, high=1.03),
        "latency": TEACHER.latency.model_copy(
            update={"speedup": Speedup(value=6.31, low=6.12, high=6.54)}
        ),
        "speedup_over_onnx_float32": Speedup(value=1.66, low=1.61, high=1.7),
        "parity": ParitySummary(
            passed=True,
            reference="student",
            texts=258,
            rows=772,
            max_abs_difference=0.31,
            mean_abs_difference=0.02,
            min_cosine=0.99,
            agreement=0.9876,
        ),
    }
)

CONSTANT = ConstantRow(
    label="positive", score=Score(metric="accuracy", value=0.5092, low=0.476, high=0.5422, n=872)
)
AGAIN = TEACHER.latency.model_copy(update={"speedup": Speedup(value=1.01, low=0.97, high=1.04)})


def compared(*rows: ComparisonRow, **changes: object) -> Comparison:
    values = {
        "circumstances": conditions(),
        "rows": rows,
        "constant": CONSTANT,
        "noise_floor": AGAIN,
        "timed_lengths": (((13,),),),
    }
    return Comparison.model_validate({**values, **changes})
