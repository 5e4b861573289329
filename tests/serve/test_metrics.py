"""The metrics of the backend: what is counted, what is sent to Triton, and what /metrics shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from bertender.text.batch import Batch, Example
from serve.backend.metrics import METRIC_FAMILIES, MetricsThread, Tally, length_label
from serve.backend.opening import open_served_model
from serve.backend.worker import METRICS_S
from serve.client.endpoint import Endpoint
from serve.config import BackendParameters, ServeConfig
from serve.repository import write_repository
from serve.server.server import Server
from tests.serve.asking import ask
from tests.serve.marked_model import ASK
from tests.serve.scraped import scrape, scrape_until
from tests.served import ANY_PORTS

WAIT = "bertender_queue_wait_seconds"


def test_waits_are_a_cumulative_histogram() -> None:
    tally = Tally()
    for wait in (0.0, 0.001, 0.0011, 0.3, 60.0):
        tally.wait(wait)
    amounts = tally.take()
    within = {bound: amounts[f"{WAIT}_bucket", bound] for bound in ("0.001", "0.002", "0.5", "10")}
    assert within == {"0.001": 2, "0.002": 3, "0.5": 4, "10": 4}
    assert amounts[f"{WAIT}_bucket", "+Inf"] == amounts[f"{WAIT}_count", ""] == 5
    assert amounts[f"{WAIT}_sum", ""] == pytest.approx(60.3021)
    assert tally.take() == {}


def test_texts_are_counted_by_confidence_and_tokens() -> None:
    tally = Tally()
    tally.texts([4, 5, 2000], [0.5, 0.55, 1.0], abstained=2)
    amounts = tally.take()
    within = {bound: amounts["bertender_confidence_bucket", bound] for bound in ("0.5", "0.99")}
    assert within == {"0.5": 1, "0.99": 2}
    assert amounts["bertender_confidence_bucket", "+Inf"] == 3
    assert amounts["bertender_confidence_sum", ""] == pytest.approx(2.05)
    tokens = {bound: amounts["bertender_text_tokens_bucket", bound] for bound in ("4", "8", "1024")}
    assert tokens == {"4": 1, "8": 2, "1024": 2}
    assert amounts["bertender_text_tokens_sum", ""] == 2009
    assert amounts["bertender_abstained_texts_total", ""] == 2


def test_runs_are_counted_by_length_with_their_padding() -> None:
    tally = Tally()
    tally.run(np.array([[1] * 17, [1] * 10 + [0] * 7]), 0.25)
    tally.run(np.array([[1] * 600]), 0.5)
    amounts = tally.take()
    names = ("runs", "run_texts", "run_tokens", "run_padding_tokens", "run_seconds")
    assert [amounts[f"bertender_{name}_total", "32"] for name in names] == [1, 2, 27, 7, 0.25]
    assert amounts["bertender_run_tokens_total", "+Inf"] == 600


@pytest.mark.parametrize(("length", "label"), [(1, "16"), (16, "16"), (17, "32"), (513, "+Inf")])
def test_a_length_has_the_next_label(length: int, label: str) -> None:
    assert length_label(length) == label


def test_the_queue_is_sent_as_a_difference_so_that_instances_add_up() -> None:
    tally = Tally()
    changes = [tally.take(texts).get(("bertender_queue_texts", ""), 0) for texts in (5, 5, 2, 0)]
    assert changes == [5, 0, -3, -2]


def test_copies_at_work_are_one_second_of_each_second_together(onnx_artifact: Artifact) -> None:
    """Each has the metric of all: with four, it would be four times the time."""
    slow_s = 0.2
    parameters = BackendParameters(threads=1)
    model = open_served_model(onnx_artifact.path, parameters, max_batch_size=8, instances=4)
    predictor = model.classifier.predictor

    def logits(batch: Batch) -> Any:
        time.sleep(slow_s)
        return predictor.logits(batch)

    model.classifier.predictor = SimpleNamespace(logits=logits)
    ask(model, [("apple",)])
    model.close()
    assert slow_s / 4 <= model.tally.take()["bertender_batch_seconds_total", ""] < slow_s


def test_whatever_is_counted_has_a_family() -> None:
    tally = Tally()
    tally.wait(0.1)
    tally.batch(3, 0.1)
    tally.rejection("invalid")
    tally.run(np.array([[1, 1], [1, 0]]), 0.1)
    tally.texts([3], [0.7], abstained=1)
    amounts = tally.take(1)
    assert {name for name, _ in amounts} == {family.name for family in METRIC_FAMILIES}
    assert amounts.keys() <= {
        (family.name, own) for family in METRIC_FAMILIES for own in family.values
    }


def test_without_metrics_nothing_piles_up(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("metrics are off")

    refuse.COUNTER = "counter"  # type: ignore[attr-defined]
    tally = Tally()
    tally.wait(0.1)
    thread = MetricsThread(SimpleNamespace(MetricFamily=refuse), {}, tally)
    thread.stop()
    assert "metrics are off" in caplog.text
    assert tally.take() == {}


class Family:
    """A family as Triton has it; every message to Triton is in `sent`."""

    COUNTER, GAUGE = "counter", "gauge"
    sent: ClassVar[list[tuple[str, float]]] = []

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(self, labels: Mapping[str, str]) -> Family:  # noqa: N802 - Triton's name
        return self

    def increment(self, amount: float) -> None:
        self.sent.append((self.name, amount))


def test_many_requests_are_one_message_a_series() -> None:
    tally = Tally()
    thread = MetricsThread(SimpleNamespace(MetricFamily=Family), {"model": "m"}, tally)
    for _ in range(1000):
        tally.wait(20.0)
        tally.rejection("invalid")
    thread.stop()
    totals = Counter[str]()
    for name, amount in Family.sent:
        totals[name] += round(amount)
    assert totals == {
        f"{WAIT}_bucket": 1000,
        f"{WAIT}_count": 1000,
        f"{WAIT}_sum": 20_000,
        "bertender_rejected_requests_total": 1000,
    }
    assert len(Family.sent) <= 2 * len(totals), "a second may have ended meanwhile"


def tokens_of(local: Classifier, examples: tuple[Example, ...]) -> list[int]:
    return [int(local.encode([each]).arrays["attention_mask"].sum()) for each in examples]


def sums(before: Mapping[Any, float], after: Mapping[Any, float]) -> dict[str, float]:
    """Return by how much each metric of the backend has grown, over its labels."""
    grown = dict.fromkeys((family.name for family in METRIC_FAMILIES), 0.0)
    for (name, labels), value in after.items():  # type: ignore[misc]
        if name in grown:
            grown[name] += value - before[name, labels]
    return grown


@pytest.mark.server
def test_every_series_is_there_from_the_start(served: Server) -> None:
    series = scrape(served)
    for family in METRIC_FAMILIES:
        for value in family.values:
            labels = frozenset(family.labels(value).items())
            assert (family.name, labels) in series


@pytest.mark.server
def test_the_metrics_are_those_of_the_requests(
    served: Server, local: Classifier, texts: tuple[Example, ...]
) -> None:
    time.sleep(2 * METRICS_S)  # what earlier tests of this server sent is counted by then
    before = scrape(served)
    some = tuple(sorted(texts[:6], key=lambda text: len(text[0])))
    with Endpoint(served.grpc_url) as endpoint:
        for each in some[:5]:
            endpoint.classify([each])
        endpoint.classify(some)
    assert ASK["http"](served, ["fine", " "]).status == "400"
    refused = {("protocol", "http"), ("outcome", "invalid")}
    invalid = ("bertender_door_requests_total", frozenset(refused))

    def all_counted(series: Mapping[Any, float]) -> bool:
        """The watch may ask meanwhile, so that six batches need not be those of the requests."""
        grown = sums(before, series)
        batches = grown["bertender_batches_total"]
        beyond_one_each = grown["bertender_batch_texts_total"] - batches
        return batches == grown[f"{WAIT}_count"] and beyond_one_each == 5

    after = scrape_until(served, all_counted)
    grown = sums(before, after)
    tokens = tokens_of(local, some)
    batch_count = grown["bertender_batches_total"]
    watched = batch_count - 6  # a text each, by which the door watches the model
    assert grown[f"{WAIT}_count"] == batch_count and 0 <= watched < 5
    assert grown["bertender_batch_texts_total"] == grown["bertender_run_texts_total"]
    assert grown["bertender_run_texts_total"] == 11 + watched
    assert grown["bertender_run_tokens_total"] >= sum(tokens[:5]) + sum(tokens)
    assert after[invalid] == before.get(invalid, 0) + 1
    assert grown["bertender_rejected_requests_total"] == 0, "the door has refused it"
    assert 0 < grown["bertender_run_seconds_total"] < grown["bertender_batch_seconds_total"]
    assert grown["bertender_run_padding_tokens_total"] < sum(tokens)


@pytest.mark.server
@pytest.mark.slow
def test_instances_share_their_metrics(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(**ANY_PORTS, instances=2, threads_per_instance=1)
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with Server(repository, config) as server:
        with Endpoint(server.http_url) as endpoint:
            for _ in range(8):
                endpoint.classify([("pear",)])
        texts = ("bertender_batch_texts_total", frozenset[tuple[str, str]]())
        scrape_until(server, lambda series: series[texts] >= 8)
