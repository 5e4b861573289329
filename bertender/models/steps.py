"""STEPS: the steps that support an architecture, and the reasons of those that do not.

Errors, documentation and tests all use these reasons.
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
"""Attention fusion by family; pruned models have that of their original."""
NEVER_SEEN = Fusion(obstacle="no pattern is known for its layers")


def _supported(name: str) -> str:
    return ""


def _by_family(of: Callable[[Family], str]) -> Callable[[str], str]:
    """Return a function from an architecture to the reason of its family in FAMILIES; others have
    unknown layers."""
    return lambda name: of(FAMILIES[name]) if name in FAMILIES else UNKNOWN_LAYERS


def _not_fused(name: str) -> str:
    return FUSIONS.get(name, NEVER_SEEN).obstacle


def _not_fused_in_8_bits(name: str) -> str:
    return FUSIONS.get(name, NEVER_SEEN).obstacle_in_8_bits


WITHOUT_EXPORT: Mapping[str, str] = {
    "longformer": "it pads texts to whole windows, and a graph has those of the traced text alone",
}
"""Architectures whose graphs compute other outputs than the model."""


def _not_exported(name: str) -> str:
    return WITHOUT_EXPORT.get(name, "")


Obstacle = Callable[[str], str]
"""model_type -> why a step does not support an architecture; empty if it does."""

STEPS: Mapping[str, Obstacle] = {
    "import": _supported,
    "finetune": _supported,
    "logits": _supported,
    "hidden states": _by_family(lambda family: ""),
    "sentence states": _by_family(lambda family: ""),
    "queries": _by_family(lambda family: ""),
    "keys": _by_family(lambda family: ""),
    "values": _by_family(lambda family: ""),
    "attention scores": _by_family(lambda family: ""),
    "student": _by_family(lambda family: ""),
    "prune heads": _by_family(lambda family: family.pruning.obstacle),
    "prune neurons": _by_family(lambda family: family.pruning.obstacle),
    "prune layers": _by_family(lambda family: SHARED_LAYERS if family.shared_layers else ""),
    "export": _not_exported,
    "fuse": _not_fused,
    "quantize": _supported,
    "quantize fused": _not_fused_in_8_bits,
    "serve": _supported,
}
"""Obstacles of each step, or of each signal that a student learns from. Encoder-decoders are not
exported, whatever this table says."""
