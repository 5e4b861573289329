"""The head of rankings: a score for each passage, learned by comparing those of one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertender.problems.ranking import RANKING
from bertender.tasks.task import Split
from bertender.training.heads.head import ROWS, Columns, Head, token_rows
from bertender.training.heads.losses import divisor, precise

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from bertender.training.heads.head import Divergence, TensorBatch

IMPOSSIBLE = -1e4
"""A score of a passage that is not there: its probability is 0."""


class RankingHead(Head):
    """A score for each passage of a query, one token row each.

    Logits are the scores of all rows of a batch, (rows, 1); ROWS says how many each query has.
    """

    problem = RANKING.name
    several_rows = True
    softens = False

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Sequence[Any]], Columns]:
        """Return the tokens of each pair, and the relevance of each as a row of its own."""
        tokens, counts = token_rows(RANKING.encoder(tokenizer), split.examples)
        labels = [[[relevance] for relevance in target] for target in split.label_ids]
        return tokens, {"labels": labels, ROWS: counts}

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the cross-entropy of the softmax over a query's passages with its relevances,
        divided by their sum; the mean over queries with a relevant passage.

        It is ListNet's loss (Cao et al. 2007), with the relevances themselves as the true
        distribution. For binary ones it bounds MRR and NDCG (Bruch et al. 2019), and rerankers that
        learn from groups with one relevant passage minimise it (Gao et al. 2021, arXiv 2101.08751).
        """
        relevances = _by_query(batch["labels"].to(logits.device), batch, fill=0.0)
        sums = relevances.sum(1)
        known = sums > 0  # nobody has labelled the others: their sum is NaN
        shares = relevances[known] / sums[known, None]
        chances = self.predicted(logits, batch)[known].log_softmax(-1)
        return -(shares * chances).sum() / divisor(known.sum().float())

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the scores of each query, (queries, most passages)."""
        return _by_query(precise(logits), batch, fill=IMPOSSIBLE)

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        """Margin-MSE (Hofstätter et al. 2020, arXiv 2010.02666, equation 3): the mean squared
        difference of the student's and the teacher's margins between two passages of a query.

        It is taken over all two passages, where the paper has a relevant and another one; the mean
        over queries of several. With d the differences of the scores, the mean of (d_i - d_j)^2
        over all i != j is twice the variance of d with n - 1 in its denominator. A margin is no
        distribution, and nothing is softened.
        """
        apart = precise(student) - precise(teacher.detach())
        counts = batch[ROWS].to(apart.device)
        several = counts > 1
        total = (_by_query(apart, batch, fill=0.0).sum(1) / counts).repeat_interleave(counts)
        squares = _by_query((apart - total[:, None]).square(), batch, fill=0.0).sum(1)
        losses = 2 * squares[several] / (counts[several] - 1)
        return losses.sum() / divisor(several.sum().float())

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        return self.soft_loss(student, teacher, batch, 1.0)

    def averaged(self, logits: Sequence[Any]) -> Any:
        """Return the mean of scores: of tensors, or of cached ones, a tensor for each query."""
        if len(logits) == 1:
            return logits[0]
        if not isinstance(logits[0], tuple):
            return sum(logits[1:], start=logits[0]) / len(logits)
        return tuple(self.averaged(own) for own in zip(*logits, strict=True))


def _by_query(values: torch.Tensor, batch: TensorBatch, fill: float) -> torch.Tensor:
    """Return values of the rows of a batch, (rows, 1), as (queries, most passages)."""
    from torch.nn.utils.rnn import pad_sequence

    own = values.squeeze(-1).split(batch[ROWS].tolist())
    return pad_sequence(list(own), batch_first=True, padding_value=fill)
