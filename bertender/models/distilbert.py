"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108), as transformers has it."""

from __future__ import annotations

import math

import torch
from transformers import PreTrainedModel
from transformers.models.distilbert.modeling_distilbert import MultiHeadSelfAttention

from bertender.models.attention_heads import Pruning, distilbert_heads
from bertender.models.family import Family, Fusion, LanguageHead, Norms
from bertender.models.sublayers import FeedForward, Projections

__all__ = ["DISTILBERT"]


class _SummedMask(MultiHeadSelfAttention):
    """DistilBERT's attention with its mask added, as in BERT, where it fills scores in.

    The optimizer no longer recognises masks that are filled in. After the softmax both are equal.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        head_mask: torch.Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Return the contexts (batch, seq, hidden) of tokens; mask is (batch, seq)."""
        width = self.attention_head_size
        shape = (query.shape[0], -1, self.n_heads, width)
        queries, keys, values = (
            layer(query).view(shape).transpose(1, 2)  # (batch, heads, seq, head_dim)
            for layer in (self.q_lin, self.k_lin, self.v_lin)
        )
        hidden = (1.0 - mask[:, None, None, :].to(query.dtype)) * torch.finfo(query.dtype).min
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(width) + hidden
        contexts = (scores.softmax(-1) @ values).transpose(1, 2).contiguous()
        joined = contexts.view(query.shape[0], -1, self.n_heads * width)
        return (self.out_lin(joined),)


def _sum_masks(model: PreTrainedModel) -> None:
    for module in model.modules():
        if isinstance(module, MultiHeadSelfAttention):
            module.__class__ = _SummedMask


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
    fusion=Fusion(prepare=_sum_masks),
    pruning=Pruning(distilbert_heads, width="hidden_dim"),
)
