"""Digests of weights, and of the libraries that compute with them: what cached outputs go by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from bertender.core.card import library_versions

__all__ = ["computing_versions", "encoder_digest", "tensors_digest", "weights_digest"]

COMPUTING = ("bertender", "torch", "transformers")
"""Another version of these may compute other outputs; one of another library does not."""
DESCRIPTIVE = frozenset(
    {"_name_or_path", "architectures", "id2label", "label2id", "transformers_version"}
)
"""Settings of a model's config that change nothing in what its encoder computes."""


def computing_versions() -> list[str | None]:
    """Return the versions of the libraries that compute a model's outputs."""
    return [library_versions().get(name) for name in COMPUTING]


def weights_digest(model: PreTrainedModel) -> str:
    """Return a sha256 of all weights of a model's encoder; its new head is left out."""
    return tensors_digest(model.base_model.state_dict())


def encoder_digest(model: PreTrainedModel) -> str:
    """Return a sha256 of what decides a model's hidden states: weights, and settings of its config.

    Weights alone do not: their number of heads or their activation may differ.
    """
    settings = {
        name: value for name, value in model.config.to_dict().items() if name not in DESCRIPTIVE
    }
    written = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(f"{weights_digest(model)} {written}".encode()).hexdigest()


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a sha256 of named tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
