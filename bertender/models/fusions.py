"""FUSIONS: whether ONNX Runtime can run a family's attention as one operator, by its row."""

from __future__ import annotations

from collections.abc import Mapping

from bertender.models.families import FAMILIES
from bertender.models.family import Fusion
from bertender.models.own_models import OWN_MODELS

__all__ = ["FUSIONS", "NEVER_SEEN"]

NEVER_SEEN = Fusion(obstacle="no pattern is known for its layers")

FUSIONS: Mapping[str, Fusion] = {
    **{name: own.fusion for name, own in OWN_MODELS.items() if own.fusion},
    **{name: family.fusion for name, family in FAMILIES.items()},
}
"""A family, of a pruned model its former one -> how its attention becomes one operator."""
