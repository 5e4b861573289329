"""An architecture that bertender defines, and where the rows of those of one file are."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig, PreTrainedModel

from bertender.models.family import Fusion

__all__ = ["OwnModel"]


@dataclass(frozen=True)
class OwnModel:
    """A row of OWN_MODELS."""

    config: type[PretrainedConfig]
    classifier: type[PreTrainedModel]
    tagger: type[PreTrainedModel] | None = None
    fusion: Fusion | None = None
    """How its attention becomes one operator; None of pruned models, which are of FAMILIES."""
    per_token: tuple[str, ...] = ()
    """Its weights with one row a token, besides the table of word embeddings."""
