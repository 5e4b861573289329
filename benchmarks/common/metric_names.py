"""METRIC_NAMES: what tables call the metrics."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["METRIC_NAMES"]

METRIC_NAMES: Mapping[str, str] = {
    "accuracy": "accuracy",
    "f1": "F1",
    "matthews": "Matthews",
    "entity_f1": "entity F1",
}
"""A row of METRICS -> its name in a table."""
