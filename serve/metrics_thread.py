"""Sends what the backend has counted to Triton, once a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from serve.backend_metrics import FAMILIES, Series, Tally

__all__ = ["MetricsThread"]

logger = logging.getLogger(__name__)

FLUSH_S = 1.0


class MetricsThread:
    """Sends a tally to Triton once a second, if there is something new.

    Args:
        triton: the module `triton_python_backend_utils`.
        labels: of every series, such as the model's name.
        tally: what to send.
        queue_texts: returns how many texts are in the queue.
    """

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
            self._register(triton, labels)
        except Exception as error:  # a server with --allow-metrics=false; it serves all the same
            self._do_without(error)
        self._thread.start()

    def stop(self) -> None:
        """Send the last, and end the thread."""
        self._stop.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _register(self, triton: Any, labels: Mapping[str, str]) -> None:
        for family in FAMILIES:
            kind = getattr(triton.MetricFamily, family.kind)
            registered = triton.MetricFamily(family.name, family.description, kind)
            self._families.append(registered)
            for value in family.values:
                metric = registered.Metric(labels={**labels, **family.labels(value)})
                self._metrics[family.name, value] = metric

    def _work(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        """Send what is new; without metrics, forget it."""
        amounts = self.tally.take(self.queue_texts())
        try:
            for series in amounts.keys() & self._metrics.keys():
                self._metrics[series].increment(amounts[series])
        except Exception as error:  # the endpoint goes on
            self._do_without(error)

    def _do_without(self, error: Exception) -> None:
        logger.warning("the backend has no metrics: Triton refuses them: %s", error)
        self._metrics.clear()
