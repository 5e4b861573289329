"""Compressions whose probes are judged on few texts, and which time all models in few rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bertender.comparison.records import LatencyConfig
from bertender.compression import compress, plan
from bertender.compression.config import CompressConfig


@pytest.fixture(scope="module")
def brief_probes() -> Iterator[None]:
    """Where no test asks how fast a model is."""
    timing_of, finished_timing = plan.timing_of, compress._timing
    few = {"rounds": 2, "single_texts": 4, "batch_size": 2, "warmup_rounds": 0}

    def brief(config: CompressConfig) -> LatencyConfig:
        return timing_of(config).model_copy(update=few)

    def brief_at_the_end(config: CompressConfig) -> dict[str, Any]:
        return {**finished_timing(config), **few}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "timing_of", brief)
        patch.setattr(compress, "_timing", brief_at_the_end)
        patch.setattr(plan, "TEXTS", 16)
        patch.setattr(plan, "MEASURED_ONLY", {"parity_texts": 8, "golden_texts": 0})
        yield
