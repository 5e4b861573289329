"""Findings of the parity gate in an artifact's card."""

from __future__ import annotations

from bertender.core.config import Record

__all__ = ["ParitySummary"]


class ParitySummary(Record):
    """Distance of a model's logits from those of the model that it was made from."""

    passed: bool
    reference: str
    texts: int
    rows: int
    max_abs_difference: float | None
    mean_abs_difference: float | None
    min_cosine: float | None
    agreement: float | None
    median_difference: float | None = None
    p95_difference: float | None = None
    common_shift: float | None = None
    correlation: float | None = None
    near_ties: int | None = None
    near_ties_turned: int | None = None
    score_change: float | None = None
