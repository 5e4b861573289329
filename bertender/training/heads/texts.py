"""Heads with one row of logits per text: labels, choices, scores of passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertender.metrics.metric import NO_LABEL, is_labelled
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.multiple_choice import MULTIPLE_CHOICE
from bertender.problems.ranking import RANKING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import longest_input
from bertender.text.windows import WINDOW_POOLINGS, windows_of
from bertender.training.heads.head import (
    IMPOSSIBLE,
    POOLING,
    ROWS,
    Columns,
    Head,
    averaged_distributions,
    divisor,
    label_counts,
    logit_mse,
    precise,
    row_weights,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from bertender.training.heads.head import Divergence, TensorBatch


LABEL_PADDING = -1
"""Padding after the last label of a set."""


class TextHead(Head):
    """One row of logits per text or pair of texts."""

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Any], Columns]:
        if pooling := windows_of(tokenizer):
            tokens, columns = super().tokenize(split, tokenizer)
            own = [*WINDOW_POOLINGS].index(pooling)
            return tokens, {**columns, POOLING: [own] * len(split)}
        texts = [list(column) for column in zip(*split.examples, strict=True)]
        longest = longest_input(tokenizer)
        tokens = tokenizer(*texts, truncation=True, max_length=longest, padding=False)
        return tokens, self.columns(split.label_ids)

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return one row per text, pooled over its windows unless the logits are a teacher's pooled
        ones."""
        if POOLING not in batch or len(logits) == len(batch[ROWS]):
            return logits
        return pooled_rows(logits, batch[ROWS].tolist(), int(batch[POOLING][0]))


def pooled_rows(logits: torch.Tensor, counts: Sequence[int], pooling: int) -> torch.Tensor:
    """Return the logits of texts, given those of all their windows and each text's number of
    windows.

    Args:
        logits: (rows, labels).
        counts: number of rows of each text.
        pooling: value of the column POOLING.
    """
    import torch

    is_mean = [*WINDOW_POOLINGS][pooling] == "mean"
    own = logits.split(list(counts))
    return torch.stack([each.mean(0) if is_mean else each.amax(0) for each in own])


class LabelHead(TextHead):
    """One label of several."""

    problem = SINGLE_LABEL.name
    learns_classes = True


def _is_labelled(batch: TensorBatch) -> torch.Tensor:
    """Return which texts have a set of labels, (batch,); padding may be on either side."""
    return (batch["labels"] != NO_LABEL).all(-1)


class SetHead(TextHead):
    """Any number of labels, each with its own probability.

    A prediction is for one label, a distribution over two classes: the softmax over 0 and a logit
    is the logit's sigmoid, so that all losses on distributions apply.
    """

    problem = MULTI_LABEL.name
    learns_classes = True
    padding: Mapping[str, int] = {"labels": LABEL_PADDING}

    def columns(self, targets: Sequence[Sequence[int]]) -> Columns:
        return {"labels": [list(target) or [LABEL_PADDING] for target in targets]}

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the binary cross-entropy with the labels, the mean over texts and labels."""
        import torch
        from torch.nn import functional

        numbers = batch["labels"]  # (batch, labels of the largest set)
        truth = torch.zeros(len(logits), logits.shape[-1] + 1, device=logits.device)
        truth.scatter_(1, numbers.where(numbers >= 0, logits.shape[-1]), 1.0)
        truth, how = truth[:, :-1], self.label_loss
        losses = functional.binary_cross_entropy_with_logits(
            precise(logits),
            truth * (1 - how.smoothing) + how.smoothing / 2,
            reduction="none",
            pos_weight=torch.tensor(how.weights, device=logits.device) if how.weights else None,
        )
        known = _is_labelled(batch)
        return (losses.mean(-1) * known).sum() / divisor(known.sum().float())

    def labelled(self, logits: torch.Tensor, batch: TensorBatch) -> int:
        return int(_is_labelled(batch).sum()) * logits.shape[-1]

    def balanced(self, task: Task) -> tuple[float, ...]:
        """Return the weight of each label in texts that have it, so that these have the same sum as
        the other texts; 1 for labels that none or all of them have."""
        texts = sum(map(is_labelled, task.train.label_ids))
        counts = label_counts(task)
        return tuple((texts - count) / count if 0 < count < texts else 1.0 for count in counts)

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        import torch

        return torch.stack([torch.zeros_like(logits), logits], dim=-1).flatten(0, -2)

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        """Return the mean squared difference of the logits, over texts and labels."""
        return logit_mse(student, teacher, *row_weights(batch, student))

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(logits) == 1:
            return logits[0]
        mean = averaged_distributions([self.predicted(each, {}) for each in logits])
        return (mean[:, 1] - mean[:, 0]).view_as(logits[0])


class ChoiceHead(Head):
    """One of several choices, each a token row with a score: a softmax over a question's
    choices."""

    problem = MULTIPLE_CHOICE.name
    several_rows = True

    def joined(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the scores (rows, 1) as logits (batch, choices)."""
        return logits.view(len(batch[ROWS]), -1)

    def of_examples(self, cached: torch.Tensor) -> torch.Tensor:
        return cached.squeeze(-1)

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean of logits (examples, choices), or of cached ones, in their shape."""
        return averaged_distributions([each.flatten(1) for each in logits]).view_as(logits[0])


class RankingHead(Head):
    """A score for each passage of a query, with one token row each.

    Logits are the scores of all rows of a batch, (rows, 1); ROWS has the number of each query.
    """

    problem = RANKING.name
    several_rows = True
    softens = False

    def columns(self, targets: Sequence[Sequence[float]]) -> Columns:
        """Return the relevance of each passage, a row of its own."""
        return {"labels": [[[relevance] for relevance in target] for target in targets]}

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the cross-entropy of the softmax over a query's passages with its relevances,
        divided by their sum; the mean over queries with a relevant passage.

        This is ListNet's loss (Cao et al. 2007), with the relevances themselves as the true
        distribution. For binary relevances it bounds MRR and NDCG (Bruch et al. 2019), and
        rerankers trained on groups with one relevant passage minimise it (Gao et al. 2021, arXiv
        2101.08751).
        """
        relevances = _by_query(batch["labels"].to(logits.device), batch, fill=0.0)
        sums = relevances.sum(1)
        known = sums > 0  # unlabelled queries have a NaN sum
        shares = relevances[known] / sums[known, None]
        chances = self.predicted(logits, batch)[known].log_softmax(-1)
        return -(shares * chances).sum() / divisor(known.sum().float())

    def labelled(self, logits: torch.Tensor, batch: TensorBatch) -> int:
        return int((_by_query(batch["labels"], batch, fill=0.0).sum(1) > 0).sum())

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

        The mean is over all pairs of passages, while the paper has a relevant and another one; for
        several queries, it is their mean. With d the differences of the scores, the mean of (d_i -
        d_j)^2 over all i != j is twice the variance of d with n - 1 in its denominator. A margin is
        not a distribution, so nothing is softened.
        """
        apart = precise(student) - precise(teacher.detach())
        counts = batch[ROWS].to(apart.device)
        several = counts > 1
        total = (_by_query(apart, batch, fill=0.0).sum(1) / counts).repeat_interleave(counts)
        squares = _by_query((apart - total[:, None]).square(), batch, fill=0.0).sum(1)
        losses = 2 * squares[several] / (counts[several] - 1)
        return losses.sum() / divisor(several.sum().float())

    def averaged(self, logits: Sequence[Any]) -> Any:
        """Return the mean of scores: of tensors, or of cached scores, one tensor per query."""
        if len(logits) == 1:
            return logits[0]
        if not isinstance(logits[0], tuple):
            return sum(logits[1:], start=logits[0]) / len(logits)
        return tuple(self.averaged(own) for own in zip(*logits, strict=True))


def _by_query(values: torch.Tensor, batch: TensorBatch, fill: float) -> torch.Tensor:
    """Return values for the rows of a batch, (rows, 1), as (queries, most passages)."""
    from torch.nn.utils.rnn import pad_sequence

    own = values.squeeze(-1).split(batch[ROWS].tolist())
    return pad_sequence(list(own), batch_first=True, padding_value=fill)
