"""A real server that runs several buckets at once predicts, counts and refuses as it does without.

What the backend does with faults, late and gone clients is tested in test_backend, with
one bucket at a time and with several.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from bertender.text.batch import Example
from serve.client.endpoint import Endpoint
from tests.serve.scraped import scrape_until
from tests.served import one_by_one, served


@pytest.mark.server
def test_it_predicts_as_the_local_model_and_counts_every_bucket(
    onnx_artifact: Artifact, local: Classifier, texts: tuple[Example, ...], tmp_path: Path
) -> None:
    settings = {"concurrent_buckets": 3, "tokens_per_bucket": 16, "max_batch_size": 64}
    with served(onnx_artifact, tmp_path, **settings) as server:
        with Endpoint(server.grpc_url) as endpoint:
            predictions = endpoint.classify(texts[:60])
        seen = scrape_until(server, lambda series: of(series, "run_texts") >= 60)
    labels, logits = one_by_one(local, texts[:60])
    assert [each.label for each in predictions] == labels
    np.testing.assert_allclose([each.logits for each in predictions], logits, atol=1e-5)
    tokens = int(local.encode(texts[:60]).arrays["attention_mask"].sum())
    watched = of(seen, "run_texts") - 60  # texts by which the door watches the model
    assert 0 <= watched < 5
    assert tokens <= of(seen, "run_tokens") <= tokens + 20 * watched
    assert of(seen, "runs") > 3


def of(series: object, name: str) -> float:
    """Return a counter of the backend, over all lengths."""
    assert isinstance(series, dict)
    return sum(value for (each, _), value in series.items() if each == f"bertender_{name}_total")
