"""The model that a pruning leaves, before any importance is measured."""

from __future__ import annotations

from dataclasses import replace

from bertender.models.expected import ExpectedModel
from bertender.models.families import family_name
from bertender.models.pruned import PRUNABLE
from distill.pruning.config import PruneConfig

__all__ = ["expected_pruned"]


def expected_pruned(config: PruneConfig, source: ExpectedModel | None) -> ExpectedModel | None:
    """Return what is left of a model, as far as it is known before any texts are read."""
    if source is None or not (config.cuts_parts or config.layers):
        return source
    if not config.cuts_parts:  # which layers go decides how deep and how even the rest is
        return replace(source, shape_known=False)
    origin = family_name(source.model.config)
    # a head that is gone makes a layer unlike the config; neurons may go in equal numbers
    return ExpectedModel.of_type(PRUNABLE[origin].config.model_type if config.heads else origin)
