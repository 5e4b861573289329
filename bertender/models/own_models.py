"""OWN_MODELS: the architectures that bertender defines, because transformers does not have them.

Their artifacts open with bertender alone. Elsewhere transformers refuses them, since their
config.json names a type that it does not know.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from bertender.core.errors import ModelError
from bertender.core.hub_code import open_pretrained
from bertender.core.table import LazyTable
from bertender.models.families import FAMILIES, family_name
from bertender.models.own_model import OwnModel
from bertender.models.own_places import OWN_PLACES
from bertender.models.pruned import PRUNABLE

__all__ = ["OWN_MODELS", "load_pretrained", "not_finite", "open_config", "register_own_models"]

OUTPUTS: Mapping[str, bool] = {
    "return_dict": True,
    "torchscript": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
"""Settings of what a model returns, which some configs have otherwise."""


OWN_MODELS: Mapping[str, OwnModel] = ChainMap(
    {
        row.config.model_type: OwnModel(row.config, row.classifier, row.tagger)
        for row in PRUNABLE.values()
    },
    LazyTable("architecture", OWN_PLACES),  # type: ignore[arg-type]
)


def register_own_models() -> None:
    """Let the Auto classes of transformers know the rows of OWN_MODELS."""
    for row in OWN_MODELS.values():
        AutoConfig.register(row.config.model_type, row.config, exist_ok=True)
        AutoModelForSequenceClassification.register(row.config, row.classifier, exist_ok=True)
        if row.tagger is not None:
            AutoModelForTokenClassification.register(row.config, row.tagger, exist_ok=True)


def open_config(source: str, **settings: Any) -> PretrainedConfig:
    """Read the config of a model of transformers or of OWN_MODELS.

    Args:
        source: a folder or a hub name.
        settings: more arguments of `from_pretrained`.

    Raises:
        HubCodeError: it names code of the hub.
        OSError, ValueError, KeyError: it cannot be read.
    """
    register_own_models()
    config: PretrainedConfig = open_pretrained(AutoConfig, source, **settings)
    return config


def load_pretrained(
    auto_class: Any, source: str, **settings: Any
) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    """Load a model of transformers or of OWN_MODELS, from safetensors alone.

    Args:
        auto_class: one of transformers' Auto classes, that of the head.
        source: a folder or a hub name.
        settings: more arguments of `from_pretrained`.

    Returns:
        The model, and what its weights did not fit: `missing_keys`, `mismatched_keys`, ...

    Raises:
        HubCodeError: its config names code of the hub.
        ModelError: a weight is not finite.
        OSError, ValueError, KeyError, RuntimeError, SafetensorError: it cannot be opened, or it
            would need a pickle or code from the hub.
    """
    config = open_config(source, **_where_to_look(settings))
    family = FAMILIES.get(family_name(config))
    settings = {**OUTPUTS, **(family.loading if family else {}), **settings}
    model, report = open_pretrained(
        auto_class, source, use_safetensors=True, output_loading_info=True, **settings
    )
    if name := not_finite(model):
        raise ModelError(
            f"weight {name} of {source} has a value that is not a finite number, so that all that "
            "is computed with it is lost. Take the weights of an earlier checkpoint, or download "
            "them again."
        )
    return model, report


def not_finite(model: nn.Module) -> str | None:
    """Return the name of the first weight with a NaN or an infinity; None where all are finite."""
    for name, weight in model.named_parameters():
        # a sum takes no memory; it is not finite where a value is not
        if not weight.is_meta and not weight.detach().sum(dtype=torch.float64).isfinite():
            return name
    return None


def _where_to_look(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("local_files_only",) if name in settings}
