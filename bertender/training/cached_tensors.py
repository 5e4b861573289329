"""Tensors that are computed once and cached in files of the cache folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertender.core.cache import cached

__all__ = ["cached_tensor"]

NAME = "values"
"""Of the tensor in its file."""


def cached_tensor(path: Path, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the tensor of a file, memory-mapped; it is computed and written first where it is
    missing or damaged."""
    return cached(path, compute, _save, _load, _described)


def _save(values: torch.Tensor, path: Path) -> None:
    save_file({NAME: values}, path)


def _load(path: Path) -> torch.Tensor:
    return load_file(path)[NAME]


def _described(path: Path) -> str:
    """Return the shape and type of the values; to digest gigabytes would take too long."""
    try:
        values = _load(path)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"no tensor {NAME!r}: {error}") from None
    return f"{tuple(values.shape)} {values.dtype}"
