"""The head of text vectors, and its losses, by the cosines of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from bertender.core.errors import ConfigError
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.tasks.task import Task
from bertender.training.config import TaskTrainingConfig
from bertender.training.heads.head import PART, ROWS, Columns, Head, mean_of_rows, precise

if TYPE_CHECKING:
    import torch

    from bertender.training.heads.head import Divergence, TensorBatch


class VectorHead(Head):
    """A vector, learned by the cosines of pairs of texts, for each of its PARTS, so that it can be
    truncated (Kusupati et al. 2022, arXiv 2205.13147)."""

    problem = SENTENCE_EMBEDDING.name
    several_rows = True
    softens = False

    def columns(self, targets: Sequence[float]) -> Columns:
        return {"labels": [*map(float, targets)]}

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[float],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Let the model make vectors in the same way as its source."""
        if source is not None and hasattr(source, "vector"):
            model.vector = source.vector

    def averaged(self, logits: Sequence[Any]) -> Any:
        """Return the vectors of one model; several models have no common directions."""
        (own,) = logits
        return own

    def configured(self, config: TaskTrainingConfig, task: Task) -> Self:
        """Return the head.

        Raises:
            ConfigError: a batch has one pair, whose loss would be 0; or is run in parts.
        """
        if config.accumulation > 1 and len(task.train.labelled):
            raise ConfigError(
                f"accumulation={config.accumulation}: texts get vectors by comparing all pairs of "
                "a batch with each other, and parts of it would be compared apart. Leave it out, "
                "and give as large a batch_size and tokens_per_batch as memory allows."
            )
        if config.batch_size == 1 and len(task.train.labelled):
            raise ConfigError(
                "batch_size=1: texts get vectors by comparing the pairs of a batch with each "
                "other. Give 2 or more."
            )
        return super().configured(config, task)

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the loss on the pairs of a batch; single texts have none.

        The loss is `ordered_cosines` for pairs with similarities, else `in_batch`.

        Args:
            logits: vectors (rows, dimensions).
            batch: with ROWS (batch) and `labels` (batch).
        """
        import torch

        counts, labels = batch[ROWS], batch["labels"]
        is_pair = (counts == 2) & ~labels.isnan()
        firsts = (counts.cumsum(0) - counts)[is_pair]
        scores = labels[is_pair]
        known = scores.isfinite()
        ids = batch["input_ids"][firsts + 1]
        losses = []
        for part in prefixes(logits):
            first, second = part[firsts], part[firsts + 1]
            cosines = (first * second).sum(-1)
            losses.append(
                ordered_cosines(cosines[known], scores[known])
                + in_batch(first[~known], second[~known], ids[~known])
            )
        return torch.stack(losses).mean()

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        """Return the distance from the teacher's vectors, of all texts.

        For vectors of the same width it is their squared distance (Reimers and Gurevych 2020, arXiv
        2004.09813), which is twice one minus their cosine. Else it is the squared distance of their
        cosines with the other texts of the batch (Tung and Mori 2019, arXiv 1907.09682), summed
        over these texts, where the paper has the mean.
        """
        from torch.nn import functional

        ours, theirs = (
            functional.normalize(precise(each), dim=-1) for each in (student, teacher.detach())
        )
        if ours.shape[-1] != theirs.shape[-1]:
            if (part := PART.get()) and part.in_turn:
                raise ConfigError(
                    "accumulation: vectors of another width than the teacher's are learned by the "
                    "cosines of all texts of a batch, which parts of it do not have. Leave it "
                    "out, or give a student as wide as its teacher."
                )
            ours, theirs = (all_products(each, each) for each in (ours, theirs))
        return mean_of_rows((ours - theirs).square().sum(-1))


PARTS = (1, 2, 4, 8)
"""Fractions of a vector to learn: a vector of 384 may be truncated to 192, 96 and 48."""
SCALE = 20.0
"""Scale of cosines in losses: the inverse of a temperature of 0.05."""


def prefixes(vectors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield vectors (rows, dimensions) and their first PARTS, each of length 1."""
    import torch
    from torch.nn import functional

    whole = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    for part in PARTS:
        yield functional.normalize(whole[:, : max(whole.shape[-1] // part, 1)], dim=-1)


def all_products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the products of vectors (rows, dimensions) with all others, (rows, others)."""
    import torch

    with torch.autocast(first.device.type, enabled=False):  # autocast would use bfloat16
        return first @ second.T


def ordered_cosines(cosines: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """CoSENT: penalise cosines (pairs) whose order differs from that of their scores (pairs).

    log(1 + sum of exp(SCALE (lower - higher))), over all two pairs of which one has the higher
    score (Su 2022; the cosine objective of Li and Li 2023, arXiv 2309.12871). Only the order of
    scores counts, as in Spearman's correlation, so that they may have any unit.
    """
    import torch

    apart = SCALE * (cosines[None, :] - cosines[:, None])  # (higher, lower)
    apart = apart[scores[:, None] > scores[None, :]]
    return torch.cat([apart.new_zeros(1), apart]).logsumexp(0)


def in_batch(first: torch.Tensor, second: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each pair's second text among those of the batch, by cosines.

    Henderson et al. 2017 (arXiv 1705.00652), section 4.4. An equal text of another pair is not a
    wrong answer, and is left out.

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
    scores = all_products(SCALE * first, second).masked_fill(same & ~own, float("-inf"))
    return functional.cross_entropy(scores, torch.arange(len(ids), device=ids.device))
