"""Tensors that are computed once and kept in files of the cache folder."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertender.core.atomic import replacing
from bertender.core.cache import CACHE_VARIABLE

__all__ = ["keep", "kept"]

logger = logging.getLogger(__name__)

NAME = "values"
"""Of the tensor in its file."""


def keep(path: Path, values: torch.Tensor) -> torch.Tensor:
    """Write a tensor, and return it as the file that it is now, memory-mapped.

    A folder that cannot be written is a warning: the tensor is then computed every time.
    """
    try:
        with replacing(path) as draft:
            save_file({NAME: values}, draft)
    except OSError as error:
        logger.warning(
            "%s cannot be kept: %s. Set %s to another folder.", path, error, CACHE_VARIABLE
        )
        return values
    return load_file(path)[NAME]


def kept(path: Path, *shape: int) -> torch.Tensor | None:
    """Read a kept tensor; None where there is none, or it is damaged and must be made again.

    Args:
        path: its file.
        shape: its first dimensions; what has others is damaged.
    """
    if not path.is_file():
        return None
    try:
        values = load_file(path)[NAME]
    except (SafetensorError, KeyError, OSError) as error:
        logger.warning("%s is damaged and is made again: %s", path, error)
        return None
    if tuple(values.shape[: len(shape)]) == shape:
        return values
    logger.warning("%s holds %s and not %s, and is made again", path, tuple(values.shape), shape)
    return None
