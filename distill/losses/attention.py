"""Losses of attention scores and of relations between tokens.

PyTorch is imported in the functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distill.losses.means import mean, precise

if TYPE_CHECKING:
    import torch

__all__ = ["attention_divergence", "attention_mse", "relation_divergence"]


def attention_mse(
    student_scores: torch.Tensor, teacher_scores: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of attention scores before softmax, over pairs of real tokens.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 7.

    Args:
        student_scores: (batch, heads, seq, seq).
        teacher_scores: (batch, heads, seq, seq), with as many heads.
        mask: (batch, seq).
    """
    difference = precise(student_scores) - precise(teacher_scores.detach())
    pairs = mask[:, :, None] * mask[:, None, :]  # (batch, seq, seq)
    return mean(difference.square().mean(1), pairs)


def attention_divergence(
    student_scores: torch.Tensor, teacher_scores: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """KL divergence of the student's attention from the teacher's, over heads and real tokens.

    Wang et al. 2020 (MiniLM, arXiv 2002.10957), eq. 6. Each row of scores is a distribution over
    the real tokens of its text. Texts count alike, whatever their length.

    Args:
        student_scores: (batch, heads, seq, seq), before mask and softmax.
        teacher_scores: (batch, heads, seq, seq), with as many heads.
        mask: (batch, seq).
    """
    student = _log_attention(student_scores, mask)
    teacher = _log_attention(teacher_scores.detach(), mask)
    divergence = (teacher.exp() * (teacher - student)).sum(-1).mean(1)  # (batch, seq)
    by_text = (divergence * mask).sum(1) / mask.sum(1)
    return by_text.mean()


def relation_divergence(
    student_vectors: torch.Tensor,
    teacher_vectors: torch.Tensor,
    mask: torch.Tensor,
    relation_heads: int | None = None,
) -> torch.Tensor:
    """KL divergence of self-attention relations: how much each token's vector is like each other's.

    Wang et al. 2020 (MiniLM, arXiv 2002.10957), eq. 7 to 9, and, where `relation_heads` are set,
    Wang et al. 2021 (MiniLMv2, arXiv 2012.15828), eq. 5 and 6: the heads are joined and cut again
    into so many, which is what frees the student from the teacher's number of heads.

    Args:
        student_vectors: queries, keys or values, (batch, heads, seq, head_dim).
        teacher_vectors: the same of the teacher; its width need not be the student's.
        mask: (batch, seq).
        relation_heads: must divide both widths; None keeps the heads as they are.
    """
    return attention_divergence(
        _relations(precise(student_vectors), relation_heads),
        _relations(precise(teacher_vectors.detach()), relation_heads),
        mask,
    )


def _relations(vectors: torch.Tensor, relation_heads: int | None) -> torch.Tensor:
    """Return scaled products of vectors, (batch, relation heads, seq, seq)."""
    import torch

    if relation_heads is not None:
        joined = vectors.transpose(1, 2).flatten(2)  # (batch, seq, hidden)
        vectors = joined.unflatten(-1, (relation_heads, -1)).transpose(1, 2)
    with torch.autocast(vectors.device.type, enabled=False):  # or it would be in bfloat16
        return vectors @ vectors.transpose(-1, -2) / math.sqrt(vectors.shape[-1])


def _log_attention(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities over the real tokens; 0 for padding."""
    from torch.nn import functional

    real = mask[:, None, None, :].bool()
    log = functional.log_softmax(precise(scores).masked_fill(~real, -math.inf), dim=-1)
    return log.masked_fill(~real, 0.0)
