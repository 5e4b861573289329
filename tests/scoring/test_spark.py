"""The scorer as Spark's `predict_batch_udf`, in a local session."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.scoring.scorer import Scorer
from bertender.tasks.task import Task

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_a_scorer_is_a_function_of_spark(
    exported: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = pytest.importorskip("pyspark.sql")
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import DataType

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    texts = [text for (text,) in task.dev.examples[:20]]
    scorer = Scorer(exported)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    session = sql.SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        predict = predict_batch_udf(
            scorer.batch_function,
            return_type=DataType.fromDDL("predicted string, probabilities array<double>"),
            batch_size=8,
        )
        table = session.createDataFrame([(text,) for text in texts], "text string")
        found = table.select("text", predict("text").alias("own")).collect()
    finally:
        session.stop()
    for row, own in zip(found, scorer([row["text"] for row in found]), strict=True):
        assert row["own"]["predicted"] == own["predicted"]
        wanted = [*own["probabilities"].values()]
        np.testing.assert_allclose(row["own"]["probabilities"], wanted, atol=1e-5)
    assert sorted(row["text"] for row in found) == sorted(texts)
