"""Digests of weights, and of the libraries that compute with them: what cached outputs go by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from bertender.core.card import library_versions

__all__ = ["computing_versions", "tensors_digest", "weights_digest"]

COMPUTING = ("bertender", "torch", "transformers")
"""Another version of these may compute other outputs; one of another library does not."""


def computing_versions() -> list[str | None]:
    """Return the versions of the libraries that compute a model's outputs."""
    return [library_versions().get(name) for name in COMPUTING]


def weights_digest(model: PreTrainedModel) -> str:
    """Return a sha256 of all weights of a model's encoder; its new head is left out."""
    return tensors_digest(model.base_model.state_dict())


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a sha256 of named tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
