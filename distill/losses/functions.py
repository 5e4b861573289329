"""The losses of distillation: functions of student and teacher tensors, with masks.

Every mask is (batch, seq), 1 for a real token and 0 for padding, and no loss changes with what
stands where it is 0. No gradient flows into a teacher. Sums are taken in float32 at least.
PyTorch is imported in the functions: methods and their settings name losses without loading it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertender.metrics.metric import NO_LABEL
from bertender.training.heads import divisor, mean_of_rows, precise, soft_labels

if TYPE_CHECKING:
    import torch


def mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the values where the mask is 1."""
    weights = mask.to(values.dtype)
    return (values * weights).sum() / divisor(weights.sum())


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
    return mean_of_rows(by_text)


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


def hidden_cosine(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """One minus the cosine of student and teacher states, averaged over real tokens.

    Sanh et al. 2019 (arXiv 1910.01108), section 2: the cosine embedding loss, which aligns the
    directions of the hidden states.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden), of the same width.
        mask: (batch, seq).
    """
    from torch.nn import functional

    cosine = functional.cosine_similarity(
        precise(student_states), precise(teacher_states.detach()), dim=-1
    )  # (batch, seq)
    return mean(1 - cosine, mask)


def hidden_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of hidden states over real tokens and the width.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 8 and 9.

    Args:
        student_states: (batch, seq, hidden), brought to the teacher's width by a projection.
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    difference = precise(student_states) - precise(teacher_states.detach())
    return mean(difference.square().mean(-1), mask)


def normalised_hidden_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of hidden states that are brought to mean 0 and variance 1.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984), eq. 1: feature map transfer, of maps that
    a layer norm without parameters brought to one scale, over real tokens and the width.

    Args:
        student_states: (batch, seq, hidden), brought to the teacher's width by a projection.
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    return hidden_mse(_normalised(student_states), _normalised(teacher_states), mask)


def hidden_mean_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Squared difference of the means over the width, averaged over real tokens.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984): what `normalised_hidden_mse` takes away,
    together with `hidden_variance_difference`. The widths need not be equal.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    difference = precise(student_states).mean(-1) - precise(teacher_states.detach()).mean(-1)
    return mean(difference.square(), mask)


def hidden_variance_difference(
    student_states: torch.Tensor, teacher_states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Absolute difference of the variances over the width, averaged over real tokens.

    Sun et al. 2020 (MobileBERT, arXiv 2004.02984). The widths need not be equal.

    Args:
        student_states: (batch, seq, hidden).
        teacher_states: (batch, seq, hidden).
        mask: (batch, seq).
    """
    ours, theirs = precise(student_states), precise(teacher_states.detach())
    return mean((ours.var(-1, correction=0) - theirs.var(-1, correction=0)).abs(), mask)


def normalised_sentence_mse(
    student_states: torch.Tensor, teacher_states: torch.Tensor
) -> torch.Tensor:
    """Mean squared difference of [CLS] states of length one, over the batch and the width.

    Sun et al. 2019 (PKD, arXiv 1908.09355), eq. 7. The mean over the width follows the published
    code, to whose weight of 500 it belongs; the paper writes the squared distance.

    Args:
        student_states: (batch, hidden).
        teacher_states: (batch, hidden), of the same width.
    """
    from torch.nn import functional

    student = functional.normalize(precise(student_states), dim=-1)
    teacher = functional.normalize(precise(teacher_states.detach()), dim=-1)
    return mean_of_rows((student - teacher).square().mean(-1))


def sentence_cosine(student_states: torch.Tensor, teacher_states: torch.Tensor) -> torch.Tensor:
    """One minus the cosine of the [CLS] states, averaged over the batch.

    Aguilar et al. 2019 (arXiv 1910.03723), eq. 3.

    Args:
        student_states: (batch, hidden).
        teacher_states: (batch, hidden), of the same width.
    """
    from torch.nn import functional

    cosine = functional.cosine_similarity(
        precise(student_states), precise(teacher_states.detach()), dim=-1
    )  # (batch)
    return mean_of_rows(1 - cosine)


def _normalised(states: torch.Tensor) -> torch.Tensor:
    """Return each token's state (batch, seq, hidden) with mean 0 and variance 1."""
    from torch.nn import functional

    return functional.layer_norm(precise(states), states.shape[-1:], eps=1e-12)


def weight_mse(student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum over the weights of the mean squared difference of each.

    Zhao et al. 2019 (arXiv 1909.11687v1), section 3.3. One of each two was projected to the size
    of the other. No gradient flows into the teacher's own weights, but into a projection of them.

    Args:
        student: weights of any shapes.
        teacher: as many, of the same shapes.
    """
    import torch
    from torch.nn import functional

    pairs = zip(student, teacher, strict=True)
    return torch.stack(
        [functional.mse_loss(precise(ours), precise(theirs)) for ours, theirs in pairs]
    ).sum()


def token_soft_labels(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """`soft_labels` of every real token: a distribution over words or tags each.

    Sanh et al. 2019 (DistilBERT, arXiv 1910.01108), section 2, over the words of a vocabulary.

    Args:
        student_logits: (batch, seq, classes).
        teacher_logits: (batch, seq, classes).
        mask: (batch, seq).
        temperature: above 0; larger is softer.
    """
    real = mask.bool()
    return soft_labels(student_logits[real], teacher_logits[real], temperature)


def soft_cross_entropy(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    temperature: float,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy with the teacher's softened distribution, without T squared.

    Jiao et al. 2019 (TinyBERT, arXiv 1909.10351), eq. 10. It differs from `soft_labels` at T = 1
    by the teacher's entropy, which is constant; here the mean is over the batch alone.

    Args:
        student_logits: (batch, labels).
        teacher_logits: (batch, labels).
        temperature: above 0; larger is softer.
        weights: (batch,), by how much each row counts; None where all count alike.
    """
    from torch.nn import functional

    student = functional.log_softmax(precise(student_logits) / temperature, dim=-1)
    teacher = functional.softmax(precise(teacher_logits.detach()) / temperature, dim=-1)
    return mean_of_rows(-(teacher * student).sum(-1), weights)


def vocabulary_labels(
    logits: torch.Tensor, targets: torch.Tensor, entries: Sequence[int]
) -> torch.Tensor:
    """Cross-entropy of each target among the entries of its own vocabulary alone.

    Zhao et al. 2019 (arXiv 1909.11687v1), section 3.2: a softmax for each of the vocabularies
    that a row mixes.

    Args:
        logits: (batch, seq, all entries), one vocabulary after another.
        targets: (batch, seq), the numbers of entries; NO_LABEL where nothing is asked.
        entries: how many each vocabulary has.
    """
    from torch.nn import functional

    asked = targets != NO_LABEL
    rows, wanted = precise(logits[asked]), targets[asked]
    total, first = rows.sum() * 0, 0
    for own, of_vocabulary in zip(entries, rows.split(list(entries), dim=-1), strict=True):
        mine = (first <= wanted) & (wanted < first + own)
        total = total + functional.cross_entropy(
            of_vocabulary[mine], wanted[mine] - first, reduction="sum"
        )
        first += own
    return total / divisor(asked.sum().float())
