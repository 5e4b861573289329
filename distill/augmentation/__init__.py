"""AUGMENTATIONS: every way to make more texts out of a task's own, by name; one paper a file.

What rewrites texts loads PyTorch and scikit-learn: its module is imported when it runs, so that
settings name an augmentation without it.
"""

from __future__ import annotations

from bertender.core.table import Table, on_demand
from distill.augmentation.augmentation import Augmentation, Material

__all__ = ["AUGMENTATIONS", "Augmentation", "Material"]

AUGMENTATIONS = Table(
    "augmentation",
    {
        row.name: row
        for row in (
            Augmentation(
                name="bilstm",
                summary="words masked, swapped within their class of form, and runs of words "
                "cut out",
                paper="Tang et al. 2019, arXiv 1903.12136",
                rewriter=on_demand("distill.augmentation.bilstm:rewriter"),
                copies=20,
                pair_turns=((True, False), (False, True), (True, True)),
                writes_mask=True,
            ),
            Augmentation(
                name="tinybert",
                summary="words replaced by what a masked language model, or the teacher's "
                "embeddings, propose",
                paper="Jiao et al. 2019, arXiv 1909.10351",
                rewriter=on_demand("distill.augmentation.tinybert:rewriter"),
                copies=20,
                asks_language_model=True,
            ),
        )
    },
)
