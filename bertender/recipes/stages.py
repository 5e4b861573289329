"""STAGES: what a step of a recipe, a command and a function of the package can be.

A row is written in the package that does the work, and its module is imported when the row is
asked for: so `bertender export --help` loads nothing of distilling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.core.config import LazyTable, Place

if TYPE_CHECKING:
    from bertender.recipes.stage import Stage

STAGES: LazyTable[Stage] = LazyTable(
    "stage",
    {
        "pretrain": Place("distill.stages:PRETRAIN", "Pre-train a small encoder on plain text."),
        "distill-general": Place(
            "distill.stages:DISTILL_GENERAL",
            "Distil an encoder into a smaller one on plain text.",
        ),
        "baseline": Place(
            "distill.stages:BASELINE",
            "Train the bag-of-words control that a teacher must beat.",
        ),
        "finetune": Place(
            "distill.stages:FINETUNE", "Fine-tune an encoder on a task: the teacher."
        ),
        "distill": Place(
            "distill.stages:DISTILL", "Train a smaller student on a teacher's outputs."
        ),
        "prune": Place("distill.stages:PRUNE", "Cut a model's least important heads and neurons."),
        "export": Place(
            "export.stages:EXPORT", "Write a model as ONNX, and prove that it predicts the same."
        ),
        "quantize": Place(
            "quantize.stages:QUANTIZE", "Write an 8-bit model, and prove that it stays near."
        ),
        "verify": Place(
            "bertender.recipes.measure_stages:VERIFY",
            "Check that a model predicts as its reference does.",
        ),
        "compare": Place(
            "bertender.recipes.measure_stages:COMPARE",
            "Measure models against each other in one table.",
        ),
        "endpoint": Place(
            "serve.stages:ENDPOINT", "Serve a model, compare it with the local one, stop it."
        ),
    },
)
