"""Masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

A share of the tokens is chosen; of these, 80 % become [MASK], 10 % a random token, 10 % stay.
The masks are drawn anew for every batch, from the seed and the step, without
next-sentence prediction (Liu et al. 2019, arXiv 1907.11692, section 4.1). `pretrain` trains on
rows of full sentences (section 4.2), `distill-general` on dense blocks.
The loss is the cross-entropy over the chosen tokens.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase

from bertender.training.examples import TensorBatch, model_inputs
from bertender.training.objective import LossParts
from distill.losses import hard_labels
from distill.objectives.masking import (
    Chooser,
    Masking,
    single_tokens,
    step_generator,
)

__all__ = ["MaskedLanguageModel"]


class MaskedLanguageModel:
    """The objective: mask a batch, predict the original tokens."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask_probability: float,
        seed: int,
        choose: Chooser = single_tokens,
    ) -> None:
        self.masking = Masking(tokenizer, mask_probability, choose)
        self.seed = seed

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        batch = self.masked_batch(batch, step)
        logits = model(**model_inputs(model, batch)).logits
        return {"mlm": hard_labels(logits, batch["targets"])}

    def masked_batch(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return the batch as this step masks it, with its `targets` (batch, seq)."""
        return self.masking.masked_batch(batch, step_generator(self.seed, step))
