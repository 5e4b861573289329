"""Compressions whose probes are judged on few texts and timed in few rounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bertender.comparison.records import LatencyConfig
from bertender.compression import plan
from bertender.compression.config import CompressConfig


@pytest.fixture(scope="module")
def brief_probes() -> Iterator[None]:
    """Where no test asks how fast a probe is."""
    timing_of = plan.timing_of

    def brief(config: CompressConfig) -> LatencyConfig:
        few = {"rounds": 2, "single_texts": 4, "batch_size": 2, "warmup_rounds": 0}
        return timing_of(config).model_copy(update=few)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "timing_of", brief)
        patch.setattr(plan, "TEXTS", 16)
        patch.setattr(plan, "OF_NO_USE", {"parity_texts": 8, "golden_texts": 0})
        yield
