"""ModernBERT (Warner et al. 2024, arXiv 2412.13663): its family.

Queries, keys and values share a linear layer, the feed-forward part has a gate, positions are
rotary, and norms come first (pre-norm). The first layer has no attention norm, since the embeddings
have one. Every `global_attn_every_n_layers`-th layer, from the first on, attends to all tokens, the
others to `local_attention` tokens around each. The kind follows from the layer's number, so that a
shorter model must keep it. Attention scores cover all tokens in local layers too, since the window
is a mask that is added later. Queries and keys are read before the rotation, scores after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from bertender.models.family import (
    BEFORE_5,
    Arguments,
    Family,
    FeedForward,
    Fusion,
    LanguageHead,
    Norms,
    Projections,
    Pruning,
    scaled_scores,
)
from bertender.models.onnx_session import RUNTIME_DOMAIN

GLOBAL_EVERY = "global_attn_every_n_layers"


def _scores(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Return scores of rotated queries and keys; local layers have their own rotation rate."""
    if BEFORE_5:
        cos, sin = attention.rotary_emb(query, position_ids=call["kwargs"]["position_ids"])
    else:
        cos, sin = call["position_embeddings"]
    return scaled_scores(attention, call, *apply_rotary_pos_emb(query, key, cos, sin))


def _heads(attention: Any, heads: Sequence[int], size: int) -> None:
    attention.num_heads = len(heads)
    attention.all_head_size = len(heads) * size


def _kinds(config: PretrainedConfig) -> list[str]:
    """Return the attention type of each layer, in the terms of transformers 5."""
    if kinds := getattr(config, "layer_types", None):
        return list(kinds)
    every = getattr(config, GLOBAL_EVERY)
    layers = range(config.num_hidden_layers)
    return ["sliding_attention" if layer % every else "full_attention" for layer in layers]


def _settings(config: PretrainedConfig, layers: Sequence[int]) -> Mapping[str, Any] | None:
    """Return the attention settings of a model with only these layers; None where there are none.

    It must have the first layer, which has no attention norm. Before transformers 5, global layers
    must be evenly spaced.
    """
    kinds = [_kinds(config)[layer] for layer in layers]
    if layers[0]:
        return None
    if not BEFORE_5:
        return {"layer_types": kinds}
    for every in (getattr(config, GLOBAL_EVERY), *range(1, len(layers) + 1)):
        if [kind == "full_attention" for kind in kinds] == [
            place % every == 0 for place in range(len(layers))
        ]:
            return {GLOBAL_EVERY: every}
    return None


def _nearest(config: PretrainedConfig, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the layers with the least total distance to `layers` whose types alternate like the
    model's."""
    kinds = _kinds(config)
    # last layer -> (least total distance, layers)
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for place, wanted in list(enumerate(layers))[1:]:
        ends = [end for end in range(place, len(kinds)) if kinds[end] == kinds[place]]
        shorter = best
        best = {
            end: (distance + abs(end - wanted), (*before, end))
            for end in ends
            if (starts := [each for last, each in shorter.items() if last < end])
            for distance, before in [min(starts)]
        }
    return min(best.values())[1]


class _Rotary(torch.autograd.Function):
    """Rotary position embedding (Su et al. 2021, arXiv 2104.09864, eq. 34).

    It is exported as one operator of ONNX Runtime.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Rotate states (batch, seq, hidden) by angles (seq, head_dim / 2), equal for all heads."""
        first, second = states.unflatten(-1, (-1, 2, cos.shape[-1])).unbind(-2)
        cos, sin = cos[:, None], sin[:, None]  # (seq, 1, head_dim / 2)
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -2)
        return turned.flatten(2)

    @staticmethod
    def symbolic(g: Any, states: Any, cos: Any, sin: Any) -> Any:
        first = g.op("Constant", value_t=torch.tensor([0]))  # the position of the first token
        turned = g.op(f"{RUNTIME_DOMAIN}::RotaryEmbedding", states, first, cos, sin)
        return turned.setType(states.type())


class _Attention(torch.autograd.Function):
    """Attention of all heads, exported as one operator of ONNX Runtime."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        heads: int,
    ) -> torch.Tensor:
        """Return contexts (batch, seq, hidden).

        Args:
            ctx: unused.
            query: rotated queries, (batch, seq, hidden).
            key: rotated keys.
            value: values.
            mask: additive mask of the scores, (batch, 1, seq, seq); None outside a trace, where
                every token attends to every other.
            heads: number of heads.
        """
        by_head = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (query, key, value))
        queries, keys, values = by_head
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        if mask is not None:
            scores = scores + mask
        contexts: torch.Tensor = scores.softmax(-1) @ values
        return contexts.transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(g: Any, query: Any, key: Any, value: Any, mask: Any, heads: int) -> Any:
        none = g.op("prim::Constant")  # no bias of the projections, no key mask
        none.setType(torch.OptionalType.ofTensor())
        inputs = (query, key, value, none, none, mask)
        contexts = g.op(f"{RUNTIME_DOMAIN}::MultiHeadAttention", *inputs, num_heads_i=heads)
        return contexts.setType(query.type())


def _fuse_attention(model: PreTrainedModel) -> None:
    """Make each attention export as operators of ONNX Runtime, whose optimizer has no pattern for
    it in any version of transformers."""
    for module in model.modules():
        if type(module).__name__ == "ModernBertAttention":
            module.forward = partial(_fused_attention, module)


def _fused_attention(
    attention: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    **call: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Return the contexts (batch, seq, hidden), like the model's own attention."""
    if BEFORE_5:
        cos, sin = attention.rotary_emb(hidden_states, position_ids=call["position_ids"])
        if attention.local_attention != (-1, -1):
            attention_mask = call["sliding_window_mask"]
    else:
        assert position_embeddings is not None
        cos, sin = position_embeddings
    half = attention.head_dim // 2
    cos, sin = cos[0, :, :half], sin[0, :, :half]  # both halves of a head rotate equally
    width = attention.Wqkv.out_features // 3
    query, key, value = attention.Wqkv(hidden_states).split(width, dim=-1)
    turn: Any = _Rotary.apply
    attend: Any = _Attention.apply
    heads = width // attention.head_dim
    contexts = attend(turn(query, cos, sin), turn(key, cos, sin), value, attention_mask, heads)
    output: torch.Tensor = attention.Wo(contexts)
    return (output,) if BEFORE_5 else (output, None)


MODERNBERT = Family(
    layers="layers",
    word_embeddings="embeddings.tok_embeddings",
    position_embeddings=None,
    embedding_norm="embeddings.norm",
    token_type_embeddings=None,
    attention="attn",
    projections=Projections.fused("attn.Wqkv", "attn.Wo"),
    feed_forward=FeedForward.gated("mlp.Wi", "mlp.Wo"),
    norms=Norms.before("attn_norm", "mlp_norm", "attn"),
    language_head=LanguageHead(("head.dense", "head.norm"), "decoder.bias"),
    plain_layers=False,
    settings_of_layers=_settings,
    nearest_layers=_nearest,
    # other implementations drop padding, and compiled parts skip hooks
    loading={
        "attn_implementation": "sdpa",
        **({"reference_compile": False} if BEFORE_5 else {}),
    },
    scores=_scores,
    fixed_layers="" if BEFORE_5 else "each has the mask and the positions of its kind",
    fusion=Fusion(prepare=_fuse_attention, written=True),
    pruning=Pruning(_heads),
)
