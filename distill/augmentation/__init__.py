"""AUGMENTATIONS: every way to make more texts out of a task's own, by name; one paper a file."""

from __future__ import annotations

from bertender.core.table import Table
from distill.augmentation.augmentation import Augmentation, Material
from distill.augmentation.bilstm import BILSTM_AUGMENTATION
from distill.augmentation.tinybert import TINYBERT_AUGMENTATION

__all__ = ["AUGMENTATIONS", "Augmentation", "Material"]

AUGMENTATIONS = Table(
    "augmentation", {row.name: row for row in (BILSTM_AUGMENTATION, TINYBERT_AUGMENTATION)}
)
