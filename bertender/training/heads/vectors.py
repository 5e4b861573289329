"""The head of text vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Self

from bertender.core.errors import ConfigError
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import longest_input
from bertender.training.config import TaskTrainingConfig
from bertender.training.heads.head import ROWS, Columns, Head
from bertender.training.heads.losses import PART, mean_of_rows, precise
from bertender.training.heads.vector_losses import in_batch, ordered_cosines, prefixes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from bertender.training.heads.head import Divergence, TensorBatch


class VectorHead(Head):
    """A vector, learned by the cosines of pairs of texts, in each of its first PARTS alike, so that
    it can be cut (Kusupati et al. 2022, arXiv 2205.13147)."""

    problem = SENTENCE_EMBEDDING.name
    several_rows = True
    softens = False

    def tokenize(
        self, split: Split, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[Mapping[str, Sequence[Any]], Columns]:
        """Return the tokens of each text, a list of rows for each example."""
        counts = [len(example) for example in split.examples]
        longest = longest_input(tokenizer)
        texts = [*chain(*split.examples)]
        tokens = tokenizer(texts, truncation=True, max_length=longest, padding=False)
        ends = [0, *accumulate(counts)]
        columns = {
            name: [rows[start:end] for start, end in pairwise(ends)]
            for name, rows in tokens.items()
        }
        return columns, {"labels": [*map(float, split.label_ids)], ROWS: counts}

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[float],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Make vectors as the source does."""
        if source is not None and hasattr(source, "vector"):
            model.vector = source.vector

    def averaged(self, logits: Sequence[Any]) -> Any:
        """Return the vectors of one model; those of several have directions of their own."""
        (own,) = logits
        return own

    def configured(self, config: TaskTrainingConfig, task: Task) -> Self:
        """Return the head.

        Raises:
            ConfigError: a batch has one pair, whose loss would be 0; or is read in parts.
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
        """Return the loss of the pairs of a batch; texts alone have none.

        That of pairs with numbers is `ordered_cosines`, and that of pairs without `in_batch`.

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

        Of vectors as wide it is the squared distance of the two (Reimers and Gurevych 2020, arXiv
        2004.09813), which is twice one minus their cosine. Else it is that of their cosines with
        the other texts of the batch (Tung and Mori 2019, arXiv 1907.09682).
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
            ours, theirs = (each @ each.T for each in (ours, theirs))
        return mean_of_rows((ours - theirs).square().sum(-1))

    def logit_loss(
        self, student: torch.Tensor, teacher: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        return self.soft_loss(student, teacher, batch, 1.0)
