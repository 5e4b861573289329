"""StructBERT's word-order objective (Wang et al. 2019, arXiv 1908.04577, section 2.2).

After tokens are masked as usual, 5 % of the trigrams of tokens that are not asked for are put
into a random order, and the masked-language head predicts at each of their places the token that
stood there. Loss = cross-entropy over the masked tokens + cross-entropy over the shuffled places,
each a mean, of equal weight as in the paper.
Trigrams are disjoint, counted from a random place among the first three of a batch, and lie within
neither special tokens nor padding. A random order is the old one once in six times.
Left out: the sentence-structural objective (section 2.3: next, previous or other sentence).
"""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase

from bertender.training.examples import TensorBatch, model_inputs
from bertender.training.objective import LossParts
from distill.losses import NO_LABEL, hard_labels
from distill.objectives.masking import Masking, step_generator

__all__ = ["WordOrder"]

SHUFFLED_SHARE = 0.05
LENGTH = 3


class WordOrder:
    """The objective: mask a batch, shuffle trigrams of the rest, predict what stood there."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
    ) -> None:
        self.masking = Masking(tokenizer, mask_probability)
        self.seed = seed

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        generator = step_generator(self.seed, step)
        masked_ids, masked = self.masking(batch["input_ids"], generator)
        free = self.masking.ordinary(batch["input_ids"]) & (masked == NO_LABEL)
        input_ids, shuffled = self.shuffled(masked_ids, free, generator)
        logits = model(**model_inputs(model, {**batch, "input_ids": input_ids})).logits
        return {"mlm": hard_labels(logits, masked), "word_order": hard_labels(logits, shuffled)}

    def shuffled(
        self, input_ids: torch.Tensor, free: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids with trigrams shuffled, and the originals there: (batch, seq), twice.

        Args:
            input_ids: (batch, seq).
            free: which tokens may be moved, (batch, seq).
            generator: what is drawn from.
        """
        start = int(torch.randint(LENGTH, (), generator=generator))
        count = max(input_ids.shape[1] - start, 0) // LENGTH
        end = start + count * LENGTH
        trigrams = input_ids[:, start:end].unflatten(1, (count, LENGTH))
        draws = torch.rand(trigrams.shape[:2], generator=generator).to(input_ids.device)
        orders = torch.rand(trigrams.shape, generator=generator).argsort(-1).to(input_ids.device)
        moved = free[:, start:end].unflatten(1, (count, LENGTH)).all(-1) & (draws < SHUFFLED_SHARE)
        mixed = trigrams.gather(2, orders).where(moved[..., None], trigrams)
        asked = trigrams.masked_fill(~moved[..., None], NO_LABEL)
        result, targets = input_ids.clone(), torch.full_like(input_ids, NO_LABEL)
        result[:, start:end] = mixed.flatten(1)
        targets[:, start:end] = asked.flatten(1)
        return result, targets
