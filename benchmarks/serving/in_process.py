"""The ceiling: the model of an endpoint in a process of its own, without a server.

    python -m benchmarks.serving.in_process ARTIFACT TEXTS.json --seconds 1.5 --calls 1,16,64

It tokenises, buckets and runs as the endpoint does, with as many texts a call as are asked for,
and prints texts a second and the median latency of each number as a line of JSON. With
`--pause-ms`, it waits before each call, as a model does that waits for requests.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertender.core.artifact import Artifact
from bertender.core.hardware import usable_cores
from bertender.text.batch import Example
from serve.backend.batches import BucketedClassifier
from serve.backend.model import open_artifact
from serve.config import BackendParameters, ServeConfig

__all__ = ["in_process"]

WARM_UP_CALLS = 5


def in_process(
    classifier: BucketedClassifier,
    texts: Sequence[Example],
    size: int,
    seconds: float,
    pause_s: float = 0.0,
) -> dict[str, Any]:
    """Return the throughput and the median latency of calls of so many texts, without pauses."""
    draw = np.random.default_rng(0)
    latencies: list[float] = []
    for call in range(-WARM_UP_CALLS, 10**9):
        drawn = [texts[row] for row in draw.integers(0, len(texts), size)]
        if pause_s:
            time.sleep(pause_s)
        started = time.perf_counter()
        classifier.outputs(drawn)
        if call >= 0:
            latencies.append(time.perf_counter() - started)
        if sum(latencies) > seconds:
            break
    return {
        "texts_per_call": size,
        "texts_per_second": size * len(latencies) / sum(latencies),
        "p50_ms": 1000 * float(np.median(latencies)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("artifact", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--calls")
    parser.add_argument("--pause-ms", type=float, default=0.0)
    options = parser.parse_args()
    texts = [(text,) for text in json.loads(options.texts.read_text(encoding="utf-8"))]
    threads = usable_cores()
    parameters = BackendParameters(
        tokens_per_bucket=ServeConfig().tokens_per_bucket, threads=threads
    )
    classifier = open_artifact(Artifact.load(options.artifact, verify=False), parameters, threads)
    measure = partial(
        in_process, classifier, texts, seconds=options.seconds, pause_s=options.pause_ms / 1000
    )
    print(json.dumps([measure(size=int(size)) for size in options.calls.split(",")]))


if __name__ == "__main__":
    main()
