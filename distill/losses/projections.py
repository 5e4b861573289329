"""Projections of a student's states to its teacher's width, from a general stage to a task's.

They are learned with the student. Those of a general stage lie next to its weights, and a
distillation that starts from there goes on with them, as TinyBERT's published code does; a model
that is used has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import nn

__all__ = ["PROJECTIONS_NAME", "Tensors", "load_projections", "save_projections", "take_up"]

PROJECTIONS_NAME = "projections.safetensors"
Tensors: TypeAlias = Mapping[str, torch.Tensor]
"""By their names in `TrainingModule.projections`."""


def save_projections(projections: Tensors, directory: Path) -> None:
    """Write projections into an artifact's directory, where there are some."""
    if projections:
        tensors = {name: each.detach().cpu().contiguous() for name, each in projections.items()}
        save_file(tensors, directory / PROJECTIONS_NAME)


def load_projections(source: str) -> Tensors:
    """Return the projections that lie in a folder; none of a hub's model."""
    file = Path(source) / PROJECTIONS_NAME
    return load_file(file) if file.is_file() else {}


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
