"""Models that are not made yet, as far as settings define them.

They are models of transformers on PyTorch's device `meta`: tensors have shapes there, and no
numbers. So what a step checks of a model is checked before the model is made, by the same
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from bertender.models.own_models import OWN_MODELS, open_config, register_own_models

__all__ = ["ExpectedModel", "expected_on_disk", "without_weights"]


@dataclass(frozen=True)
class ExpectedModel:
    """A model that is not made yet."""

    model: PreTrainedModel
    """Without weights, under a head that labels texts, whatever head it will have."""
    shape_known: bool = True
    """Whether its layers and widths are those of the model, too; else its class alone."""

    @classmethod
    def of(cls, config: PretrainedConfig, *, shape_known: bool = True) -> Self | None:
        """Return the model of a config; None where no such model labels texts."""
        register_own_models()
        auto_class: Any = AutoModelForSequenceClassification
        try:
            model = without_weights(lambda: auto_class.from_config(config, trust_remote_code=False))
        except ValueError:
            return None
        return None if model is None else cls(model, shape_known)

    @classmethod
    def of_type(cls, model_type: str) -> Self | None:
        """Return a model of which the architecture alone is known."""
        row = OWN_MODELS.get(model_type)
        config = row.config() if row else AutoConfig.for_model(model_type)
        return cls.of(config, shape_known=False)


def expected_on_disk(source: str | Path) -> ExpectedModel | None:
    """Return the model of a folder, or of a hub name that is cached; None of any other.

    Raises:
        HubCodeError: its config names code of the hub.
    """
    try:
        config = open_config(str(source), local_files_only=True)
    except (OSError, ValueError, KeyError):
        return None  # the step that opens it reports why
    return ExpectedModel.of(config)


def without_weights(build: Callable[[], PreTrainedModel]) -> PreTrainedModel | None:
    """Return what is built, without weights; None where the builder reads a number."""
    try:
        with torch.device("meta"):
            return build()
    except RuntimeError:
        return None
