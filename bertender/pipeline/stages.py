"""STAGES: what a step of a recipe, a command and a function of the package can be.

A row is written in the package that does the work, and its module is imported when the row is
asked for: so `bertender export --help` loads nothing of distilling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertender.core.table import LazyTable, Place

if TYPE_CHECKING:
    from bertender.pipeline.stage import Stage

__all__ = ["STAGES"]

STAGES: LazyTable[Stage] = LazyTable(
    "stage",
    {
        "pretrain": Place(
            "distill.stages.pretrain:PRETRAIN", "Pre-train a small encoder on plain text."
        ),
        "distill-general": Place(
            "distill.stages.general:DISTILL_GENERAL",
            "Distil an encoder into a smaller one on plain text.",
        ),
        "baseline": Place(
            "distill.stages.baseline:BASELINE",
            "Train the bag-of-words control that a teacher must beat.",
        ),
        "finetune": Place(
            "distill.stages.finetune:FINETUNE", "Fine-tune an encoder on a task: the teacher."
        ),
        "distill": Place(
            "distill.stages.distill:DISTILL", "Train a smaller student on a teacher's outputs."
        ),
        "prune": Place(
            "distill.stages.prune:PRUNE", "Cut a model's least important heads and neurons."
        ),
        "export": Place(
            "export.stages:EXPORT", "Write a model as ONNX, and prove that it predicts the same."
        ),
        "quantize": Place(
            "quantize.stages:QUANTIZE", "Write an 8-bit model, and prove that it stays near."
        ),
        "verify": Place(
            "bertender.pipeline.verify_stage:VERIFY",
            "Check that a model predicts as its reference does.",
        ),
        "compare": Place(
            "bertender.pipeline.compare_stage:COMPARE",
            "Measure models against each other in one table.",
        ),
        "endpoint": Place(
            "serve.stages:ENDPOINT", "Serve a model, compare it with the local one, stop it."
        ),
    },
)
