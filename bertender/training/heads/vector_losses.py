"""Losses of vectors of texts, by the cosines of pairs; PyTorch is imported in the functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PARTS = (1, 2, 4, 8)
"""Fractions of a vector that are learned alike: a vector of 384 may be cut to 192, 96 and 48."""
SCALE = 20.0
"""Of cosines in losses: the inverse of a temperature of 0.05."""


def prefixes(vectors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield vectors (rows, dimensions) and their first PARTS, each of length 1."""
    import torch
    from torch.nn import functional

    whole = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    for part in PARTS:
        yield functional.normalize(whole[:, : max(whole.shape[-1] // part, 1)], dim=-1)


def ordered_cosines(cosines: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """CoSENT: the loss of cosines (pairs) whose order is not that of their scores (pairs).

    log(1 + sum of exp(SCALE (lower - higher))), over all two pairs of which one has the higher
    score (Su 2022; the cosine objective of Li and Li 2023, arXiv 2309.12871). Only the order of
    scores counts, so that they may be of any unit, as Spearman's correlation has it.
    """
    import torch

    apart = SCALE * (cosines[None, :] - cosines[:, None])  # (higher, lower)
    apart = apart[scores[:, None] > scores[None, :]]
    return torch.cat([apart.new_zeros(1), apart]).logsumexp(0)


def in_batch(first: torch.Tensor, second: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each pair's second text among those of the batch, by cosines.

    Henderson et al. 2017 (arXiv 1705.00652), section 4.4. An equal text of another pair is no
    wrong answer, and left out.

    Args:
        first, second: vectors (pairs, dimensions) of length 1.
        ids: tokens of the second texts, (pairs, seq).
    """
    import torch
    from torch.nn import functional

    if not len(first):
        return first.sum()
    same = (ids[:, None] == ids[None]).all(-1)  # (pairs, pairs)
    own = torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    scores = (SCALE * first @ second.T).masked_fill(same & ~own, float("-inf"))
    return functional.cross_entropy(scores, torch.arange(len(ids), device=ids.device))
