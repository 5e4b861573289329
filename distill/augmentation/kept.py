"""Tensors that are computed once and kept in the cache folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertender.core.atomic import replacing
from bertender.core.cache import CACHE_VARIABLE, cache_directory

__all__ = ["kept_tensor"]

logger = logging.getLogger(__name__)

NAME = "values"


def kept_tensor(
    key: str, shape: tuple[int, ...], compute: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the tensor kept under `key`, computed and kept first where it is missing or damaged.

    A folder that cannot be written is a warning: the tensor is then computed every time.

    Args:
        key: a digest of everything that the tensor depends on.
        shape: what is kept in another one is damaged.
        compute: gives a tensor of this shape.
    """
    path = cache_directory() / "augmentation" / f"{key}.safetensors"
    if (kept := _read(path, shape)) is not None:
        return kept
    tensor = compute()
    try:
        with replacing(path) as draft:
            save_file({NAME: tensor}, draft)
    except OSError as error:
        logger.warning(
            "%s cannot be kept: %s. Set %s to another folder.", path, error, CACHE_VARIABLE
        )
    return tensor


def _read(path: Path, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Read a kept tensor; None where there is none, or it must be made again."""
    if not path.is_file():
        return None
    try:
        tensor = load_file(path)[NAME]
    except (SafetensorError, KeyError, OSError) as error:
        logger.warning("%s is damaged and is made again: %s", path, error)
        return None
    if tuple(tensor.shape) != shape:
        logger.warning(
            "%s holds %s and not %s, and is made again", path, tuple(tensor.shape), shape
        )
        return None
    return tensor
