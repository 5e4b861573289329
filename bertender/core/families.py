"""FAMILIES: where the parts of an encoder sit in each architecture of transformers.

All paths are relative to the base model (`model.base_model`), the parts of a layer to the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError, nearest_hint

__all__ = ["FAMILIES", "Family", "encoder_layers", "family_of"]


def _zero(config: PretrainedConfig) -> int:
    return 0


def _two(config: PretrainedConfig) -> int:
    return 2  # MPNet's code has its pad id, 1, in it, whatever the config says


def _after_pad(config: PretrainedConfig) -> int:
    assert config.pad_token_id is not None
    return config.pad_token_id + 1


@dataclass(frozen=True)
class Family:
    """The map of one architecture."""

    layers: str
    word_embeddings: str
    position_embeddings: str
    embedding_norm: str
    token_type_embeddings: str | None
    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    ffn_in: str
    ffn_out: str
    ffn_norm: str
    first_position: Callable[[PretrainedConfig], int] = _zero
    """Row of the position table that the first token reads."""
    relative_positions: bool = False
    """Attention adds a learned bias by distance, which absolute position embeddings do not hold."""


BERT = Family(
    layers="encoder.layer",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings="embeddings.token_type_embeddings",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    ffn_in="intermediate.dense",
    ffn_out="output.dense",
    ffn_norm="output.LayerNorm",
)

ROBERTA = replace(BERT, first_position=_after_pad)

DISTILBERT = Family(
    layers="transformer.layer",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings=None,
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    ffn_in="ffn.lin1",
    ffn_out="ffn.lin2",
    ffn_norm="output_layer_norm",
)

MPNET = Family(
    layers="encoder.layer",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings=None,
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    ffn_in="intermediate.dense",
    ffn_out="output.dense",
    ffn_norm="output.LayerNorm",
    first_position=_two,
    relative_positions=True,
)

FAMILIES: Mapping[str, Family] = {
    "bert": BERT,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": BERT,
    "mpnet": MPNET,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
}


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model.

    Raises:
        ModelError: the architecture is no row of FAMILIES.
    """
    name = model.config.model_type
    if name not in FAMILIES:
        raise ModelError(
            f"bertender does not know where the layers of a {name!r} model are."
            f"{nearest_hint(name, FAMILIES)} Known: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[name]


def encoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the encoder's layers, first to last."""
    layers = model.base_model.get_submodule(family_of(model).layers)
    assert isinstance(layers, nn.ModuleList)
    return list(layers)
