"""STEPS: which steps an architecture goes through, and the reason where it does not.

A refusal of a step holds this reason, so that the errors, the page and the test agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bertender.models.families import FAMILIES
from bertender.models.family import SHARED_LAYERS, UNKNOWN_LAYERS, Family, Fusion
from bertender.models.own_models import TABLE_MODELS

FUSIONS: Mapping[str, Fusion] = {
    **dict.fromkeys(TABLE_MODELS, Fusion(obstacle="it has no attention")),
    **{name: family.fusion for name, family in FAMILIES.items()},
}
"""A family, of a pruned model its former one -> how its attention becomes one operator."""
NEVER_SEEN = Fusion(obstacle="no pattern is known for its layers")


def _never(name: str) -> str:
    return ""


def _by_row(of: Callable[[Family], str]) -> Callable[[str], str]:
    """Return the reasons of the rows of FAMILIES; an architecture without one has none."""
    return lambda name: of(FAMILIES[name]) if name in FAMILIES else UNKNOWN_LAYERS


def _not_fused(name: str) -> str:
    return FUSIONS.get(name, NEVER_SEEN).obstacle


def _not_fused_in_8_bits(name: str) -> str:
    return FUSIONS.get(name, NEVER_SEEN).obstacle_in_8_bits


WITHOUT_EXPORT: Mapping[str, str] = {
    "longformer": "it pads texts to whole windows, and a graph has those of the traced text alone",
}
"""Architectures whose graphs compute something else than they do."""


def _not_exported(name: str) -> str:
    return WITHOUT_EXPORT.get(name, "")


Obstacle = Callable[[str], str]
"""model_type -> why an architecture does not go through a step; empty where it does."""

STEPS: Mapping[str, Obstacle] = {
    "import": _never,
    "finetune": _never,
    "logits": _never,
    "hidden states": _by_row(lambda family: ""),
    "sentence states": _by_row(lambda family: ""),
    "queries": _by_row(lambda family: ""),
    "keys": _by_row(lambda family: ""),
    "values": _by_row(lambda family: ""),
    "attention scores": _by_row(lambda family: ""),
    "student": _by_row(lambda family: ""),
    "prune heads": _by_row(lambda family: family.pruning.obstacle),
    "prune neurons": _by_row(lambda family: family.pruning.obstacle),
    "prune layers": _by_row(lambda family: SHARED_LAYERS if family.shared_layers else ""),
    "export": _not_exported,
    "fuse": _not_fused,
    "quantize": _never,
    "quantize fused": _not_fused_in_8_bits,
    "serve": _never,
}
"""A step, or a signal that a student learns from -> its obstacles. An architecture with a decoder
beside its encoder is not exported, whatever its row says."""
