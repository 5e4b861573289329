"""Projections of a student's states to its teacher's width, from a general stage to a task's.

They are learned with the student. Those of a general stage lie next to its weights, and a
distillation by the same method that starts from there goes on with them, as TinyBERT's published
code does; a model that is used has none. By another method, they lead elsewhere than its terms do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from bertender.core.errors import ModelError

__all__ = ["PROJECTIONS_NAME", "Tensors", "load_projections", "save_projections", "take_up"]

logger = logging.getLogger(__name__)

PROJECTIONS_NAME = "projections.safetensors"
METHOD = "method"
"""Key of the file's metadata."""
Tensors: TypeAlias = Mapping[str, torch.Tensor]
"""By their names in `TrainingModule.projections`."""


def save_projections(projections: Tensors, directory: Path, method: str) -> None:
    """Write projections into an artifact's directory, where there are some, and their method."""
    if projections:
        tensors = {name: each.detach().cpu().contiguous() for name, each in projections.items()}
        save_file(tensors, directory / PROJECTIONS_NAME, {METHOD: method})


def load_projections(source: str, method: str) -> Tensors:
    """Return the projections that lie in a folder; none of a hub's model, or of another method.

    Raises:
        ModelError: their file is damaged.
    """
    file = Path(source) / PROJECTIONS_NAME
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            theirs = (opened.metadata() or {}).get(METHOD)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot read {file}: {error}. Restore the file; or delete it, and the projections "
            "start at random."
        ) from None
    if theirs != method:
        logger.info(
            "the projections of %s start at random: its own were learned by method %s, not by %s",
            source,
            theirs or "unknown",
            method,
        )
        return {}
    logger.info("the projections of %s go on from those that it was distilled with", source)
    return tensors


@torch.no_grad()
def take_up(own: nn.Module, learned: Tensors) -> Tensors:
    """Copy projections that were learned before into new ones, where their shapes agree.

    Returns:
        The new ones, which change as they learn.
    """
    weights = dict(own.named_parameters())
    for name, weight in weights.items():
        if name in learned and learned[name].shape == weight.shape:
            weight.copy_(learned[name])
    return weights
