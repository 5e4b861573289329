"""A predictor that computes nothing: what a batch's logits are is said by a function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bertender.text.batch import Batch


class FakePredictor:
    """A predictor whose logits `compute` computes; it lists the batches that it is asked for."""

    def __init__(self, compute: Callable[[Batch], npt.NDArray[np.float32]]) -> None:
        self.compute = compute
        self.batches: list[Batch] = []

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        self.batches.append(batch)
        return self.compute(batch)
