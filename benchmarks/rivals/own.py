"""bertender itself, as a row next to its rivals."""

from __future__ import annotations

import torch

from benchmarks.rivals.opening import Opening, Predict
from benchmarks.rivals.probabilities import softmax
from bertender.core.artifact import Artifact
from bertender.models.opening import open_classifier

__all__ = ["open_own"]


def open_own(opening: Opening) -> Predict:
    """Open an artifact as `bertender compare` does, in the runtime of the settings."""
    torch.set_num_threads(opening.threads)
    classifier = open_classifier(
        Artifact.load(opening.folder, verify=False),
        threads=opening.threads,
        max_length=opening.max_length,
        **opening.settings,
    )
    return lambda examples: softmax(classifier.logits([*map(tuple, examples)]))
