"""Weights of 2, 3 or 4 bits: groups of a product's outputs share a scale.

Levels are evenly spaced and symmetric: odd multiples of half their distance, so that all of them
are used and the integers fit into the 8 bits that kernels multiply. Their distance is the one with
the least squared error for normally distributed weights of the group's root mean square (Max 1960,
"Quantizing for minimum distortion", IRE Transactions on Information Theory 6, table II).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantize.fake_quantization import LEAST_SCALE, WeightRounding, straight_through

__all__ = ["LEVEL_DISTANCES", "LowBitWeight"]

LEVEL_DISTANCES: Mapping[int, float] = {2: 0.9957, 3: 0.5860, 4: 0.3352}
"""Bits -> distance of two levels, in standard deviations of the weights."""


class LowBitWeight(WeightRounding):
    """Rounds a weight (outputs, inputs) to a few levels.

    Args:
        bits: a key of LEVEL_DISTANCES.
        groups: of consecutive outputs that share a scale; a product with fewer outputs has one for
            each.
    """

    def __init__(self, bits: int, groups: int) -> None:
        super().__init__()
        self.bits = bits
        self.groups = groups
        self.largest = 2**bits - 1

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return straight_through(weight, self.exported(weight.detach()))

    def exported(self, weight: torch.Tensor) -> torch.Tensor:
        scales = self.scales(weight)
        return self._integers(weight, scales) * scales

    def scales(self, weight: torch.Tensor) -> torch.Tensor:
        """Return half the distance of two levels, of each output: (outputs, 1)."""
        outputs = len(weight)
        groups = min(self.groups, outputs)
        group = torch.arange(outputs, device=weight.device) * groups // outputs
        sums = weight.new_zeros(groups).index_add(0, group, weight.square().mean(dim=1))
        deviations = (sums / group.bincount(minlength=groups)).sqrt()
        halves = LEVEL_DISTANCES[self.bits] / 2 * deviations
        return halves.clamp(min=LEAST_SCALE)[group].unsqueeze(1)

    def _integers(self, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Return the odd integers nearest to a weight in its scales."""
        nearest = 2 * (weight / (2 * scales)).floor() + 1
        return nearest.clamp(-self.largest, self.largest)
