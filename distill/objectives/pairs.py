"""Pairs of segments: the relation of the two is learned with the masked tokens.

The relation is read from the pooled state of [CLS] by a linear layer over two classes, which only
the training needs; the pooler stays in the model, for a classifier to start from.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.training.examples import TensorBatch
from distill.losses import hard_labels
from distill.objectives.pretraining_module import PretrainingModule

__all__ = ["RelatedPairs"]


class RelatedPairs(PretrainingModule):
    """A model with a pooler, and a head that predicts how the segments of a pair are related.

    Args:
        model: the one that is written in the end.
        language_head: where its masked-language head is.
        relation: the name of this part of the loss.
        label: the column of a batch that holds the relation, (batch,), 0 or 1.
    """

    def __init__(
        self, model: PreTrainedModel, *, language_head: str, relation: str, label: str
    ) -> None:
        super().__init__(model)
        self.language_head = language_head
        self.relation = relation
        self.label = label
        self.relation_head = self.with_own_weights(nn.Linear(model.config.hidden_size, 2))

    def forward(self, batch: TensorBatch) -> dict[str, torch.Tensor]:
        """Return the parts of the loss on a masked batch."""
        outputs = self.encoded(batch)
        tokens = self.model.get_submodule(self.language_head)(outputs.last_hidden_state)
        relation = self.relation_head(outputs.pooler_output)  # (batch, 2)
        return {
            "mlm": hard_labels(tokens, batch["targets"]),
            self.relation: functional.cross_entropy(relation.float(), batch[self.label]),
        }
