"""Progressive stacking (Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking").

A deeper encoder starts from a shallower one that is pre-trained already: its layer i is layer
i mod L of the L shallow ones (algorithm 1 doubles; other depths repeat as far as they go).
Embeddings and the head are taken over, and the vocabulary with them. Heads that only the training
needs start untrained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.hub_code import open_pretrained
from bertender.models.families import family_of
from distill.pretraining.config import PretrainConfig

__all__ = ["check_same_shape", "check_stackable", "positions_of_shallow", "stack"]

MUST_AGREE = ("tokenizer", "vocabulary_size", "hidden_size", "heads")
"""Fields of PretrainConfig that a deeper encoder shares with the shallower one."""


def check_stackable(shallow: Artifact, config: PretrainConfig, family: str) -> None:
    """Raise ConfigError where an encoder of `config` cannot grow from `shallow`."""
    name = f"stack_from={str(shallow.path)!r}"
    if shallow.card.stage != "pretrain":
        raise ConfigError(
            f"{name} is an artifact of stage {shallow.card.stage!r}. Give one of `pretrain`."
        )
    check_same_shape(name, shallow.card.family, shallow.card.config, config, family)
    if config.max_length > (positions := positions_of_shallow(shallow)):
        raise ConfigError(
            f"max_length={config.max_length}: {name} has positions for {positions} tokens only. "
            f"Give at most so many."
        )


def check_same_shape(
    name: str, shallow_family: str, shallow: Mapping[str, Any], config: PretrainConfig, family: str
) -> None:
    """Raise ConfigError where an encoder of `config` cannot grow from one of the settings
    `shallow`."""
    if shallow_family != family:
        raise ConfigError(
            f"{name} is of family {shallow_family!r}, and objective {config.objective!r} "
            f"trains one of {family!r}. Choose an objective of its own family."
        )
    for field in MUST_AGREE:
        # a card may be older than a field, which then had its default of today
        default = type(config).model_fields[field].default
        own, theirs = getattr(config, field), shallow.get(field, default)
        if own != theirs:
            raise ConfigError(
                f"{field}={own}: {name} has {field}={theirs}, and only depth can grow. "
                f"Give {field}={theirs}."
            )
    if config.layers <= (layers := shallow["layers"]):
        raise ConfigError(
            f"layers={config.layers}: {name} has {layers} already. Give more; twice is usual."
        )


def positions_of_shallow(shallow: Artifact) -> int:
    """Return how many tokens the shallower encoder has positions for."""
    config = open_pretrained(AutoConfig, shallow.path, local_files_only=True)
    return int(config.max_position_embeddings)


def stack(model: PreTrainedModel, shallow: Artifact) -> None:
    """Copy a shallower encoder's weights into `model`, its layers as often as they fit."""
    weights = load_file(shallow.path / SAFE_WEIGHTS_NAME)
    prefix = f"{model.base_model_prefix}.{family_of(model).layers}."
    depth = int(shallow.card.config["layers"])
    sources = {key: _source(key, prefix, depth) for key in model.state_dict()}
    # what is tied is in the file once; a pooler is where the shallower one's objective had it
    model.load_state_dict(
        {key: weights[source] for key, source in sources.items() if source in weights}, strict=False
    )


def _source(key: str, prefix: str, depth: int) -> str:
    """Return the shallower encoder's name of a weight."""
    if not key.startswith(prefix):
        return key
    layer, _, rest = key.removeprefix(prefix).partition(".")
    return f"{prefix}{int(layer) % depth}.{rest}"
