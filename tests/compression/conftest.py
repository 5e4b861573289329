"""Few timed texts: what is timed here is told apart by its size, and its speed proves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from bertender.measure import latency
from bertender.measure.latency_records import LatencyConfig
from bertender.text.example import Example

drawn_texts = latency.drawn_texts
FEW = {"single_texts": 10, "batch_size": 8}


@pytest.fixture(scope="package", autouse=True)
def few_texts() -> Iterator[None]:
    """Time a few of the texts that `compress` draws."""

    def drawn(
        examples: Sequence[Example], config: LatencyConfig, process: int, number: int
    ) -> tuple[list[Example], list[Example]]:
        return drawn_texts(examples, config.model_copy(update=FEW), process, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "drawn_texts", drawn)
        yield
