"""FAMILIES: where the parts of an encoder sit in each architecture of transformers.

All paths are relative to the base model (`model.base_model`), the parts of a layer to the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import ModelError, nearest_hint

__all__ = ["FAMILIES", "Family", "encoder_layers", "family_name", "family_of", "padding_embedding"]


def _zero(config: PretrainedConfig) -> int:
    return 0


def _two(config: PretrainedConfig) -> int:
    return 2  # MPNet's code has its pad id, 1, in it, whatever the config has


def _after_pad(config: PretrainedConfig) -> int:
    assert config.pad_token_id is not None
    return config.pad_token_id + 1


def _never(config: PretrainedConfig) -> bool:
    return False


def _trigram(config: PretrainedConfig) -> bool:
    return bool(config.trigram_input)


def _each(base: nn.Module, path: str) -> list[nn.Module]:
    layers = base.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    return list(layers)


def _shared(base: nn.Module, path: str) -> list[nn.Module]:
    """ALBERT's layers: groups that run one after another, each as often as its share of depth."""
    assert isinstance(base, PreTrainedModel)
    depth, groups = base.config.num_hidden_layers, _each(base, path)
    order = [groups[layer * len(groups) // depth] for layer in range(depth)]
    return [layer for group in order for layer in _each(group, "albert_layers")]


Arguments = Mapping[str, Any]
"""Arguments of a call of a self-attention module, by the names of its forward."""


def _scaled(
    attention: nn.Module, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Query times key over the root of the head's width: (batch, heads, seq, seq)."""
    return query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])


def _with_position_bias(
    attention: nn.Module, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """MPNet adds a bias by distance, the same in every layer."""
    bias: torch.Tensor = call["position_bias"]
    return _scaled(attention, call, query, key) + bias


def _disentangled(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """DeBERTa (He et al. 2020, arXiv 2006.03654, eq. 4) adds content-to-position terms.

    The model's own function computes them, on heads laid out as (batch * heads, seq, head_dim).
    """
    factor = 1 + len({"c2p", "p2c"} & set(attention.pos_att_type))
    scores: torch.Tensor = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1] * factor)
    if not attention.relative_attention:
        return scores
    bias: torch.Tensor = attention.disentangled_attention_bias(
        query.flatten(0, 1), key.flatten(0, 1), call["relative_pos"], call["rel_embeddings"], factor
    )
    return scores + bias.view_as(scores)


@dataclass(frozen=True)
class Family:
    """The map of one architecture."""

    layers: str
    word_embeddings: str
    position_embeddings: str | None
    embedding_norm: str
    token_type_embeddings: str | None
    attention: str
    """The module that turns queries, keys and values into contexts."""
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
    plain_layers: bool = True
    """Layers and embeddings are BERT's under other names; another class can take their weights."""
    reads_neighbours: Callable[[PretrainedConfig], bool] = _never
    """Return whether a token's embedding is made of its neighbours' too, padding among them."""
    layer_list: Callable[[nn.Module, str], list[nn.Module]] = _each
    """(base model, `layers`) -> the layers in the order they run; a shared one comes repeatedly."""
    scores: Callable[[nn.Module, Arguments, torch.Tensor, torch.Tensor], torch.Tensor] = _scaled
    """(attention module, its arguments, query, key) -> attention scores before mask and softmax."""


BERT = Family(
    layers="encoder.layer",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings="embeddings.token_type_embeddings",
    attention="attention.self",
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
    attention="attention",
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
    attention="attention.attn",
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
    scores=_with_position_bias,
)

ALBERT = replace(
    BERT,
    layers="encoder.albert_layer_groups",
    layer_list=_shared,
    attention="attention",
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    ffn_in="ffn",
    ffn_out="ffn_output",
    ffn_norm="full_layer_layer_norm",
    plain_layers=False,  # a linear layer stands between them and the embeddings
)

DEBERTA = replace(
    BERT,
    position_embeddings=None,
    token_type_embeddings=None,
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    relative_positions=True,
    plain_layers=False,  # its attention is scaled by the number of terms, too
    scores=_disentangled,
)

MOBILEBERT = replace(
    BERT,
    plain_layers=False,  # narrow bottlenecks, and no layer norms
    reads_neighbours=_trigram,
)

FAMILIES: Mapping[str, Family] = {
    "albert": ALBERT,
    "bert": BERT,
    "camembert": ROBERTA,
    "deberta-v2": DEBERTA,
    "distilbert": DISTILBERT,
    "electra": BERT,
    "mobilebert": MOBILEBERT,
    "mpnet": MPNET,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
}


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model.

    Raises:
        ModelError: the architecture is not a row of FAMILIES.
    """
    name = family_name(model.config)
    if name not in FAMILIES:
        raise ModelError(
            f"bertender does not know where the layers of a {name!r} model are."
            f"{nearest_hint(name, FAMILIES)} Known: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[name]


def family_name(config: PretrainedConfig) -> str:
    """Return the row of FAMILIES that a config belongs to: of a pruned model, its former one."""
    return str(getattr(config, "pruned_from", config.model_type))


def encoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the encoder's layers in the order they run; ALBERT's shared ones come repeatedly."""
    family = family_of(model)
    return family.layer_list(model.base_model, family.layers)


def padding_embedding(model: PreTrainedModel) -> torch.Tensor | None:
    """Return the embedding of padding where a text's last token reads it; None in other models.

    A text has the same logits with padding as without only where it is 0. What is returned
    is a view of the model's own table.
    """
    family = FAMILIES.get(family_name(model.config))
    if family is None or not family.reads_neighbours(model.config):
        return None
    table = model.base_model.get_submodule(family.word_embeddings).weight
    assert isinstance(table, torch.Tensor)
    return table.detach()[model.config.pad_token_id]
