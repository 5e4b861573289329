"""ModernBERT (Warner et al. 2024, arXiv 2412.13663), as transformers has it.

Queries, keys and values are one linear layer, the feed-forward part has a gate, positions turn
queries and keys, and the norms stand before the parts. The first layer has no norm before its
attention, since the embeddings have one. Every `global_attn_every_n_layers`-th layer, from the
first on, attends to all tokens, the others to `local_attention` tokens around each. Both follow
from a layer's number, so that a shorter model must have them at the right numbers.

Attention scores reach over all tokens in local layers too: their window is a mask, which comes
after. Queries and keys are read before they are turned, scores after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from bertender.models.attention_heads import Pruning
from bertender.models.family import Arguments, Family, Fusion, LanguageHead, Norms, scaled_scores
from bertender.models.sublayers import FeedForward, Projections

__all__ = ["MODERNBERT"]

EVERY = "global_attn_every_n_layers"


def _turned_scores(
    attention: Any, call: Arguments, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """Turn queries and keys by their positions first; local layers do so at a rate of their own."""
    cos, sin = attention.rotary_emb(query, position_ids=call["kwargs"]["position_ids"])
    return scaled_scores(attention, call, *apply_rotary_pos_emb(query, key, cos, sin))


def _set_heads(attention: Any, heads: Sequence[int], size: int) -> None:
    attention.num_heads = len(heads)
    attention.all_head_size = len(heads) * size


def _attends_to_all(config: PretrainedConfig, layers: Sequence[int]) -> list[bool]:
    return [layer % getattr(config, EVERY) == 0 for layer in layers]


def _settings_of_layers(
    config: PretrainedConfig, layers: Sequence[int]
) -> Mapping[str, Any] | None:
    """Return how often layers attend to all tokens in a model of these alone.

    Its first layer is the first of the whole, which alone has no norm before its attention.
    """
    whole = _attends_to_all(config, layers)
    for every in (getattr(config, EVERY), *range(1, len(layers) + 1)):
        if layers[0] == 0 and whole == [place % every == 0 for place in range(len(layers))]:
            return {EVERY: every}
    return None


def _nearest_layers(config: PretrainedConfig, layers: Sequence[int]) -> tuple[int, ...]:
    """Return layers with the least distance to some in sum that alternate as the whole model's."""
    every, depth = getattr(config, EVERY), config.num_hidden_layers
    # last layer -> the least distance that ends there, its layers
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for place, wanted in list(enumerate(layers))[1:]:
        ends = [end for end in range(place, depth) if bool(end % every) is bool(place % every)]
        shorter = best
        best = {
            end: (distance + abs(end - wanted), (*before, end))
            for end in ends
            if (starts := [each for last, each in shorter.items() if last < end])
            for distance, before in [min(starts)]
        }
    return min(best.values())[1]


def _pools_all_tokens(config: PretrainedConfig) -> bool:
    return bool(config.classifier_pooling == "mean")


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
    settings_of_layers=_settings_of_layers,
    nearest_layers=_nearest_layers,
    # other attention drops the padding, and compiled parts pass hooks by
    loading={"attn_implementation": "sdpa", "reference_compile": False},
    pools_all_tokens=_pools_all_tokens,
    scores=_turned_scores,
    fusion=Fusion(obstacle="its attention turns queries and keys by their positions"),
    pruning=Pruning(_set_heads),
)
