"""FAMILIES: paths to the parts of an encoder in each architecture of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel

from bertender.core.errors import ConfigError, ModelError, nearest_hint
from bertender.models.family import (
    BEFORE_5,
    SHARED_LAYERS,
    UNKNOWN_LAYERS,
    Arguments,
    Family,
    FeedForward,
    Fusion,
    LanguageHead,
    Norms,
    Projections,
    Pruning,
    Stacked,
    distilbert_heads,
    mpnet_heads,
    scaled_scores,
)
from bertender.models.modernbert import MODERNBERT

DISTANCES = frozenset({"relative_key", "relative_key_query"})
"""Values of `position_embedding_type` with which only attention uses positions."""


def _shared(base: nn.Module, path: str) -> list[nn.Module]:
    """Return ALBERT's layers in the order they run; shared layers are repeated."""
    assert isinstance(base, PreTrainedModel)
    groups = base.get_submodule(path)
    assert isinstance(groups, nn.ModuleList)
    depth = base.config.num_hidden_layers
    order = [groups[layer * len(groups) // depth] for layer in range(depth)]
    return [layer for group in order for layer in group.albert_layers]


def _groups_of_fewer(config: PretrainedConfig, layers: Sequence[int]) -> Mapping[str, Any] | None:
    """Return the settings of an ALBERT with only these layers; None where no number of groups
    fits."""
    count, groups = len(layers), config.num_hidden_groups
    if config.inner_group_num > 1:
        return None
    if count < groups:
        return {"num_hidden_groups": count}
    return {} if _of_the_same_groups(config, layers) == tuple(layers) else None


def _of_the_same_groups(config: PretrainedConfig, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the nearest layers that fit the groups of an ALBERT with as many layers."""
    depth, groups, count = config.num_hidden_layers, config.num_hidden_groups, len(layers)
    if count < groups:
        return tuple(layers)
    firsts = [-(-group * depth // groups) for group in range(groups + 1)]  # rounded up
    owned = (firsts[place * groups // count :][:2] for place in range(count))
    return tuple(
        min(max(layer, first), after - 1)
        for layer, (first, after) in zip(layers, owned, strict=True)
    )


def _bert_scores(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """BERT's scores: scaled products, plus scaled products with embeddings of distances, if any."""
    scores = scaled_scores(attention, call, query, key)
    return scores + _of_distances(attention, query, key) / math.sqrt(query.shape[-1])


def _albert_scores(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """ALBERT's scores: as BERT's, but transformers does not scale the products with distances."""
    return scaled_scores(attention, call, query, key) + _of_distances(attention, query, key)


def _of_distances(attention: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | float:
    """Return products with the embeddings of distances (batch, heads, seq, seq); 0 without any.

    `relative_key` multiplies queries (Shaw et al. 2018, arXiv 1803.02155), `relative_key_query`
    keys too (Huang et al. 2020, arXiv 2009.13658).
    """
    kind = getattr(attention, "position_embedding_type", None)
    if kind not in DISTANCES:
        return 0.0
    places = torch.arange(query.shape[2], device=query.device)
    numbers = places[:, None] - places + attention.max_position_embeddings - 1  # (seq, seq)
    embedded = attention.distance_embedding(numbers).to(query.dtype)  # (seq, seq, head_dim)
    products = torch.einsum("bhld,lrd->bhlr", query, embedded)
    if kind == "relative_key_query":
        products = products + torch.einsum("bhrd,lrd->bhlr", key, embedded)
    return products


def _mpnet_scores(
    attention: nn.Module, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """MPNet's scores: scaled products plus a bias by distance, the same in every layer."""
    bias: torch.Tensor = call["position_bias"]
    return scaled_scores(attention, call, query, key) + bias


def _rotary_scores(
    attention: nn.Module, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Scores of NomicBERT and families like it, with rotary positions (Su et al. 2021, arXiv
    2104.09864, eq. 34)."""
    angles: tuple[torch.Tensor, torch.Tensor] = call["position_embeddings"]
    cos, sin = angles[0][:, None], angles[1][:, None]  # (1, 1, seq, head_dim)

    def turned(states: torch.Tensor) -> torch.Tensor:
        first, second = states.chunk(2, dim=-1)
        return states * cos + torch.cat((-second, first), dim=-1) * sin

    return scaled_scores(attention, call, turned(query), turned(key))


def _roformer_scores(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """RoFormer's scores, with rotary positions (ibid.) whose angles alternate in a head."""
    turn = attention.apply_rotary_position_embeddings
    return scaled_scores(attention, call, *turn(call["sinusoidal_pos"], query, key))


def _keep_heads(attention: nn.Module, heads: Sequence[int], size: int) -> None:
    """Do nothing: attention takes its number of heads from its linear layers."""


def _deberta_scores(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """DeBERTa's scores, with content-to-position terms (He et al. 2020, arXiv 2006.03654, eq. 4).

    The model's own function computes the terms, for heads as (batch * heads, seq, head_dim).
    """
    factor = 1 + len({"c2p", "p2c"} & set(attention.pos_att_type))
    scores: torch.Tensor = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1] * factor)
    if not attention.relative_attention:
        return scores
    bias: torch.Tensor = attention.disentangled_attention_bias(
        query.flatten(0, 1), key.flatten(0, 1), call["relative_pos"], call["rel_embeddings"], factor
    )
    return scores + bias.view_as(scores)


def _keeps_convolution(config: PretrainedConfig, layers: Sequence[int]) -> Mapping[str, Any] | None:
    """Return no settings, or None where DeBERTa-v2's convolution, which follows the first layer,
    would follow another."""
    return None if getattr(config, "conv_kernel_size", 0) and layers[0] else {}


def _from_the_first(config: PretrainedConfig, layers: Sequence[int]) -> tuple[int, ...]:
    return (0, *layers[1:])


def _add_distilbert_masks(model: PreTrainedModel) -> None:
    """Make DistilBERT's attention add its mask, like BERT, where transformers before 5 fills it in.

    ONNX Runtime's optimizer does not recognise filled masks. After the softmax both are equal.
    """
    for module in model.modules():
        if BEFORE_5 and type(module).__name__ == "MultiHeadSelfAttention":
            module.forward = partial(_with_mask_added, module)


def _with_mask_added(
    attention: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    head_mask: torch.Tensor | None = None,
    output_attentions: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Return the contexts (batch, seq, hidden); mask is (batch, seq)."""
    width = attention.attention_head_size
    shape = (query.shape[0], -1, attention.n_heads, width)
    queries, keys, values = (
        layer(query).view(shape).transpose(1, 2)  # (batch, heads, seq, head_dim)
        for layer in (attention.q_lin, attention.k_lin, attention.v_lin)
    )
    hidden = (1.0 - mask[:, None, None, :].to(query.dtype)) * torch.finfo(query.dtype).min
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(width) + hidden
    contexts = (scores.softmax(-1) @ values).transpose(1, 2).contiguous()
    joined = contexts.view(query.shape[0], -1, attention.n_heads * width)
    return (attention.out_lin(joined),)


BERT_HEAD = LanguageHead(
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    "cls.predictions.bias",
)
ROBERTA_HEAD = LanguageHead(("lm_head.dense", "lm_head.layer_norm"), "lm_head.bias")

BERT = Family(
    layers="encoder.layer",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings="embeddings.token_type_embeddings",
    attention="attention.self",
    projections=Projections.separate(
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        output="attention.output.dense",
    ),
    feed_forward=FeedForward.plain("intermediate.dense", "output.dense"),
    norms=Norms.after("attention.output.LayerNorm", "output.LayerNorm"),
    language_head=BERT_HEAD,
    scores=_bert_scores,
)

ROBERTA = replace(BERT, language_head=ROBERTA_HEAD, positions_from=None)

ELECTRA = replace(
    BERT,
    language_head=LanguageHead(
        ("generator_predictions.dense", "generator_predictions.LayerNorm"), "generator_lm_head.bias"
    ),
)

MPNET = replace(
    BERT,
    token_type_embeddings=None,
    attention="attention.attn",
    projections=Projections.separate(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        output="attention.attn.o",
    ),
    norms=Norms.after("attention.LayerNorm", "output.LayerNorm"),
    language_head=ROBERTA_HEAD,
    positions_from=2,  # its code has a fixed pad id of 1, whatever the config says
    relative_positions=True,
    scores=_mpnet_scores,
    fusion=Fusion(obstacle="its attention adds a bias by distance"),
    pruning=Pruning(mpnet_heads),
)

ALBERT = replace(
    BERT,
    layers="encoder.albert_layer_groups",
    layer_list=_shared,
    attention="attention",
    projections=Projections.separate(
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.dense",
    ),
    feed_forward=FeedForward.plain("ffn", "ffn_output"),
    norms=Norms.after("attention.LayerNorm", "full_layer_layer_norm"),
    language_head=LanguageHead(("predictions.dense", "predictions.LayerNorm"), "predictions.bias"),
    plain_layers=False,  # a linear layer comes between embeddings and layers
    settings_of_layers=_groups_of_fewer,
    nearest_layers=_of_the_same_groups,
    scores=_albert_scores,
    fixed_layers=SHARED_LAYERS,
    pruning=Pruning(obstacle=SHARED_LAYERS),
)

DEBERTA = replace(
    BERT,
    position_embeddings=None,
    token_type_embeddings=None,
    projections=Projections.separate(
        query="attention.self.query_proj",
        key="attention.self.key_proj",
        value="attention.self.value_proj",
        output="attention.output.dense",
        others=("attention.self.pos_key_proj", "attention.self.pos_query_proj"),
    ),
    relative_positions=True,
    plain_layers=False,  # attention is also scaled by the number of terms
    settings_of_layers=_keeps_convolution,
    nearest_layers=_from_the_first,
    scores=_deberta_scores,
    fusion=Fusion(obstacle="its attention adds scores of content to position"),
)

MOBILEBERT = replace(
    BERT,
    plain_layers=False,  # narrow bottlenecks, and no layer norms
    language_head=LanguageHead(
        (*BERT_HEAD.parts, "cls.predictions.dense"),  # the decoder's rows beyond the embeddings
        BERT_HEAD.bias,
    ),
    fusion=Fusion(obstacle="attention is found by the layer norm behind it, and it has none"),
    pruning=Pruning(obstacle="its layers have several feed-forward parts"),
)

DISTILBERT = Family(
    layers="transformer.layer",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings=None,
    attention="attention",
    projections=Projections.separate(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
    ),
    feed_forward=FeedForward.plain("ffn.lin1", "ffn.lin2"),
    norms=Norms.after("sa_layer_norm", "output_layer_norm"),
    language_head=LanguageHead(("vocab_transform", "vocab_layer_norm"), "vocab_projector.bias"),
    fusion=Fusion(prepare=_add_distilbert_masks),
    pruning=Pruning(distilbert_heads, width="hidden_dim"),
)

TURNED = Fusion(obstacle="it turns queries and keys by positions")

ROFORMER = replace(
    BERT,
    position_embeddings=None,
    plain_layers=False,  # rotary positions
    scores=_roformer_scores,
    fusion=TURNED,
)

NOMIC_BERT = Family(
    layers="layers",
    word_embeddings="embeddings.word_embeddings",
    position_embeddings=None,
    embedding_norm="embeddings.LayerNorm",
    token_type_embeddings="embeddings.token_type_embeddings",
    attention="self_attn",
    projections=Projections.separate(
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.o_proj",
    ),
    feed_forward=FeedForward(
        (Stacked("mlp.up_proj", ("inner",)), Stacked("mlp.gate_proj", ("gate",))), "mlp.down_proj"
    ),
    norms=Norms.after("post_attention_layernorm", "post_mlp_layernorm"),
    language_head=LanguageHead(
        ("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"),
        BERT_HEAD.bias,
    ),
    plain_layers=False,  # rotary positions, and gated neurons
    scores=_rotary_scores,
    fusion=TURNED,
    pruning=Pruning(_keep_heads),
)

GTE = replace(
    NOMIC_BERT,
    token_type_embeddings=None,  # it may have none; texts are all of its first type
    language_head=LanguageHead(ROBERTA_HEAD.parts, "lm_head.decoder.bias"),
)

JINA_EMBEDDINGS_V3 = replace(
    NOMIC_BERT, feed_forward=FeedForward.plain("mlp.fc1", "mlp.fc2"), language_head=ROBERTA_HEAD
)

EUROBERT = replace(
    NOMIC_BERT,
    word_embeddings="embed_tokens",
    embedding_norm=None,
    token_type_embeddings=None,
    norms=Norms.before("input_layernorm", "post_attention_layernorm", "self_attn"),
    language_head=LanguageHead((), None),
    pruning=Pruning(obstacle="its heads may share keys and values"),
)

ERNIE = replace(BERT, plain_layers=False)  # its embeddings may have types of tasks

BIG_BIRD = replace(BERT, plain_layers=False)  # its embeddings may be scaled

FAMILIES: Mapping[str, Family] = {
    name: family
    for name, family in {
        "albert": ALBERT,
        "bert": BERT,
        "big_bird": BIG_BIRD,
        "camembert": ROBERTA,
        "deberta-v2": DEBERTA,
        "distilbert": DISTILBERT,
        "electra": ELECTRA,
        "ernie": ERNIE,
        "eurobert": EUROBERT,
        "gte": GTE,
        "jina_embeddings_v3": JINA_EMBEDDINGS_V3,
        "mobilebert": MOBILEBERT,
        "modernbert": MODERNBERT,
        "mpnet": MPNET,
        "nomic_bert": NOMIC_BERT,
        "roberta": ROBERTA,
        "roformer": ROFORMER,
        "xlm-roberta": ROBERTA,
    }.items()
    if name in CONFIG_MAPPING  # newer ones are missing in older versions of transformers
}


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model.

    Raises:
        ModelError: the architecture is not in FAMILIES.
    """
    name = family_name(model.config)
    if name not in FAMILIES:
        raise ModelError(
            f"no parts of a {name!r} model can be read: {UNKNOWN_LAYERS}."
            f"{nearest_hint(name, FAMILIES)} Known: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[name]


def family_name(config: PretrainedConfig) -> str:
    """Return the name in FAMILIES for a config; for a pruned model, that of the original."""
    return str(getattr(config, "pruned_from", config.model_type))


def pools_all_tokens(config: PretrainedConfig) -> bool:
    """Return whether a model of texts reads all tokens of the last layer, not only the first."""
    vector = getattr(config, "sentence_embedding", {})
    poolings = {getattr(config, "classifier_pooling", None), vector.get("pooling")}
    return not poolings.isdisjoint({"mean", "lasttoken"})


def most_tokens(config: PretrainedConfig) -> int | None:
    """Return the number of positions of a model; None where its config does not state it."""
    family = FAMILIES.get(family_name(config))
    positions = getattr(config, "max_position_embeddings", None) or 0
    return max(positions - (family.first_position(config) if family else 0), 0) or None


def check_positions(max_length: int, config: PretrainedConfig) -> None:
    """Raise ConfigError where a model has fewer positions than `max_length`."""
    positions = most_tokens(config)
    if positions is not None and max_length > positions:
        raise ConfigError(
            f"max_length={max_length}: the model has positions for {positions} tokens. Give so "
            "many at most, or leave it out."
        )


def encoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the encoder's layers in the order they run; ALBERT's shared layers are repeated."""
    family = family_of(model)
    return family.layer_list(model.base_model, family.layers)


def padding_embedding(model: PreTrainedModel) -> torch.Tensor | None:
    """Return a view of the padding embedding where a text's last token reads it, else None.

    It must be 0, or the logits of a text change with padding.
    """
    family = FAMILIES.get(family_name(model.config))
    # with this setting, MobileBERT's embedding of a token includes its neighbours
    if family is None or not getattr(model.config, "trigram_input", False):
        return None
    table = model.base_model.get_submodule(family.word_embeddings).weight
    assert isinstance(table, torch.Tensor)
    return table.detach()[model.config.pad_token_id]


def has_relative_positions(config: PretrainedConfig) -> bool:
    """Return whether attention has learned terms for distances between tokens."""
    row = FAMILIES.get(family_name(config))
    return bool(row and row.relative_positions) or has_distances_alone(config)


def has_distances_alone(config: PretrainedConfig) -> bool:
    """Return whether embeddings have no positions; BERT's table then exists but is not read."""
    return getattr(config, "position_embedding_type", None) in DISTANCES
