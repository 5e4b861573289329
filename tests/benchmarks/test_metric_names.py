"""Every metric has a name in the tables of benchmarks."""

from __future__ import annotations

from benchmarks.common.metric_names import METRIC_NAMES
from bertender.metrics.scores import METRICS


def test_every_metric_has_a_name_in_the_tables() -> None:
    assert set(METRIC_NAMES) == set(METRICS)
