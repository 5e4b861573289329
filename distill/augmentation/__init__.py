"""AUGMENTATIONS: every way to make more texts out of a task's own, by name; one paper a file."""

from __future__ import annotations

from collections.abc import Mapping

from bertender.core.errors import UnknownNameError
from distill.augmentation.augmentation import Augmentation, Material
from distill.augmentation.bilstm import BILSTM_AUGMENTATION
from distill.augmentation.tinybert import TINYBERT_AUGMENTATION

__all__ = ["AUGMENTATIONS", "Augmentation", "Material", "augmentation_named"]

AUGMENTATIONS: Mapping[str, Augmentation] = {
    row.name: row for row in (BILSTM_AUGMENTATION, TINYBERT_AUGMENTATION)
}


def augmentation_named(name: str) -> Augmentation:
    """Return a row of AUGMENTATIONS, or raise UnknownNameError with the nearest name."""
    if name not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", name, AUGMENTATIONS)
    return AUGMENTATIONS[name]
