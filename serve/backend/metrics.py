"""Metrics of the backend, which Triton adds to its own at /metrics.

For Triton, computation starts as soon as the backend accepts a request. Only the backend knows the
wait in its queue, rejections, and the texts in each run of the model.

Counts are summed in the backend's process and sent to Triton once a second, because each change of
a metric costs a message to Triton's process and back. All metrics are counters, or gauges that
change by differences, so that several instances add up.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

WAITS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LENGTHS = (16, 32, 64, 128, 256, 512)
LONGER = "+Inf"

REASONS: Mapping[str, str] = {
    "INVALID_ARG": "invalid",
    "INTERNAL": "failed",
    "CANCELLED": "cancelled",
    "LATE": "late",
}
"""Reason in the metrics by code of a refusal; UNAVAILABLE has the next two."""

QUEUE_FULL, QUEUE_TIMEOUT = "queue_full", "queue_timeout"


@dataclass(frozen=True)
class Family:
    """A metric, with a series for each value of its label."""

    name: str
    description: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    kind: str = "COUNTER"

    def labels(self, value: str) -> dict[str, str]:
        return {self.label: value} if self.label else {}


def length_label(length: int) -> str:
    """Return the value of the label `length` for a bucket with `length` tokens per text."""
    place = bisect_left(LENGTHS, length)
    return str(LENGTHS[place]) if place < len(LENGTHS) else LONGER


_BY_LENGTH = ("length", (*map(str, LENGTHS), LONGER))

WAIT = "bertender_queue_wait_seconds"
CONFIDENCE = "bertender_confidence"
TOKENS = "bertender_text_tokens"
HISTOGRAMS: Mapping[str, tuple[float, ...]] = {
    WAIT: WAITS_S,
    CONFIDENCE: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
    TOKENS: (4, 8, 16, 32, 64, 128, 256, 512, 1024),
}
"""Upper bounds of a histogram's buckets by name, without the last, unbounded one."""


def _histogram(name: str, counted: str, total: str) -> tuple[Family, ...]:
    """Return the three families of a histogram, as PromQL's histogram_quantile expects them. A
    histogram of Triton would cost a message for every request."""
    bounds = (*(f"{bound:g}" for bound in HISTOGRAMS[name]), LONGER)
    return (
        Family(f"{name}_bucket", f"{counted} of at most le", "le", bounds),
        Family(f"{name}_sum", total),
        Family(f"{name}_count", counted),
    )


METRIC_FAMILIES: tuple[Family, ...] = (
    *_histogram(
        WAIT,
        "Requests that waited in the queue of the backend, by seconds",
        "Seconds that requests waited in the queue of the backend",
    ),
    *_histogram(
        CONFIDENCE,
        "Texts by the probability of the least probable decision about each",
        "Sum of these probabilities",
    ),
    *_histogram(TOKENS, "Texts by the tokens that the model reads of each", "Sum of these tokens"),
    Family("bertender_abstained_texts_total", "Texts about which the model abstained"),
    Family("bertender_queue_texts", "Texts in the queue of the backend", kind="GAUGE"),
    Family(
        "bertender_rejected_requests_total",
        "Requests that the backend answered by an error, by reason",
        "reason",
        (QUEUE_FULL, QUEUE_TIMEOUT, *REASONS.values()),
    ),
    Family("bertender_batches_total", "Buckets of merged requests"),
    Family("bertender_batch_texts_total", "Texts of buckets of merged requests"),
    Family(
        "bertender_batch_seconds_total",
        "Seconds from taking a bucket to its last response, shared by copies of the model: one for "
        "each second at most",
    ),
    Family(
        "bertender_runs_total",
        "Runs of the model, by the length of their bucket: at most so many tokens a text",
        *_BY_LENGTH,
    ),
    Family("bertender_run_seconds_total", "Seconds in runs of the model", *_BY_LENGTH),
    Family("bertender_run_texts_total", "Texts in runs of the model", *_BY_LENGTH),
    Family(
        "bertender_run_tokens_total", "Tokens in runs of the model, without padding", *_BY_LENGTH
    ),
    Family("bertender_run_padding_tokens_total", "Padding in runs of the model", *_BY_LENGTH),
)
"""All metrics of the backend; each starts at 0."""

Series = tuple[str, str]
"""Name of a family, and value of its label."""


class Tally:
    """Counts since the last flush; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts = defaultdict[Series, float](float)
        self._values: dict[str, list[float]] = {name: [] for name in HISTOGRAMS}
        self._queue_texts = 0

    def wait(self, seconds: float) -> None:
        """Count a request that has left the queue."""
        with self._lock:
            self._values[WAIT].append(seconds)

    def texts(
        self, tokens: Sequence[int], confidence: Iterable[float] = (), abstained: int = 0
    ) -> None:
        """Count classified texts: their tokens, and the probabilities of the decisions."""
        with self._lock:
            self._values[TOKENS].extend(tokens)
            self._values[CONFIDENCE].extend(confidence)
            if abstained:
                self._amounts["bertender_abstained_texts_total", ""] += abstained

    def rejection(self, reason: str) -> None:
        """Count a request that gets an error."""
        with self._lock:
            self._amounts["bertender_rejected_requests_total", reason] += 1

    def batch(self, texts: int, seconds: float) -> None:
        """Count a bucket of merged requests."""
        with self._lock:
            self._amounts["bertender_batches_total", ""] += 1
            self._amounts["bertender_batch_texts_total", ""] += texts
            self._amounts["bertender_batch_seconds_total", ""] += seconds

    def run(self, attention_mask: npt.NDArray[np.int64], seconds: float) -> None:
        """Count a run of the model; the mask is (batch, seq), and empty rows are padding."""
        rows, length = attention_mask.shape
        tokens = int(attention_mask.sum())
        own = {
            "runs": 1.0,
            "run_seconds": seconds,
            "run_texts": int(attention_mask.any(axis=1).sum()),
            "run_tokens": tokens,
            "run_padding_tokens": rows * length - tokens,
        }
        with self._lock:
            for name, amount in own.items():
                self._amounts[f"bertender_{name}_total", length_label(length)] += amount

    def take(self, queue_texts: int = 0) -> dict[Series, float]:
        """Return the counts since the last call, and reset them.

        Args:
            queue_texts: current number of texts in the queue.
        """
        with self._lock:
            amounts, self._amounts = self._amounts, defaultdict(float)
            values, self._values = self._values, {name: [] for name in HISTOGRAMS}
            amounts["bertender_queue_texts", ""] = queue_texts - self._queue_texts
            self._queue_texts = queue_texts
        for name, own in values.items():
            if own:
                bounds = HISTOGRAMS[name]
                places = np.searchsorted(np.sort(own), bounds, side="right").tolist()
                for bound, place in zip(bounds, places, strict=True):
                    amounts[f"{name}_bucket", f"{bound:g}"] = float(place)
                amounts[f"{name}_bucket", LONGER] = amounts[f"{name}_count", ""] = float(len(own))
                amounts[f"{name}_sum", ""] = float(sum(own))
        return {series: amount for series, amount in amounts.items() if amount}


class MetricsThread:
    """A thread that sends a tally to Triton once a second, if it has changed.

    Args:
        triton: the module `triton_python_backend_utils`.
        labels: labels of every series, such as the model's name.
        tally: the tally to send.
        queue_texts: returns the number of texts in the queue.
    """

    FLUSH_S = 1.0

    def __init__(
        self,
        triton: Any,
        labels: Mapping[str, str],
        tally: Tally,
        queue_texts: Callable[[], int] = lambda: 0,
    ) -> None:
        self.tally = tally
        self.queue_texts = queue_texts
        self._families: list[Any] = []  # they must outlive their metrics
        self._metrics: dict[Series, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        try:
            for family in METRIC_FAMILIES:
                kind = getattr(triton.MetricFamily, family.kind)
                registered = triton.MetricFamily(family.name, family.description, kind)
                self._families.append(registered)
                for value in family.values:
                    metric = registered.Metric(labels={**labels, **family.labels(value)})
                    self._metrics[family.name, value] = metric
        except Exception as error:  # a server with --allow-metrics=false must serve all the same
            self._disable(error)
        self._thread.start()

    def stop(self) -> None:
        """Send the last counts, and end the thread."""
        self._stop.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _work(self) -> None:
        while not self._stop.wait(self.FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Send new counts; without metrics, discard them."""
        amounts = self.tally.take(self.queue_texts())
        try:
            for series in amounts.keys() & self._metrics.keys():
                self._metrics[series].increment(amounts[series])
        except Exception as error:  # the endpoint must go on
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        logger.warning("the backend has no metrics: Triton refuses them: %s", error)
        self._metrics.clear()
