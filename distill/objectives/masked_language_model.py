"""Masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

A share of the tokens is chosen; of these, 80 % become [MASK], 10 % a random token, 10 % stay.
The masks are drawn anew for every batch (Liu et al. 2019, arXiv 1907.11692, section 4.1), from
the seed and the step, so that a resumed run draws the same ones. Special tokens and padding are
never chosen. The loss is the cross-entropy over the chosen tokens.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import BertForMaskedLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.examples import TensorBatch, model_inputs
from bertender.core.training import LossParts

__all__ = ["IGNORED", "MaskedLanguageModel", "masked_model"]

IGNORED = -100
MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1


def masked_model(config: PretrainedConfig) -> PreTrainedModel:
    """Build a BERT with a masked-language-model head, untrained."""
    return BertForMaskedLM(config)


class MaskedLanguageModel:
    """The objective: mask a batch, predict what was there."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
    ) -> None:
        self.mask_probability = mask_probability
        self.seed = seed
        self.mask_token_id = int(tokenizer.mask_token_id)
        self.vocabulary_size = len(tokenizer)
        self.special_ids = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        batch = self.masked_batch(batch, step)
        logits, targets = model(**model_inputs(model, batch)).logits, batch["targets"]
        # (batch, seq, vocab) against (batch, seq)
        total = functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        # a batch of special tokens alone has no target, and a mean over nothing is not a number
        return {"mlm": total / (targets != IGNORED).sum().clamp(min=1)}

    def masked_batch(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return the batch as this step masks it, with its `targets` (batch, seq)."""
        process = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        generator = torch.Generator().manual_seed(hash((self.seed, step, process)))
        input_ids, targets = self.masked(batch["input_ids"], generator)
        return {**batch, "input_ids": input_ids, "targets": targets}

    def masked(
        self, input_ids: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return masked ids and targets, both (batch, seq); IGNORED where nothing is asked."""
        draws = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
        special = torch.isin(input_ids, self.special_ids.to(input_ids.device))
        chosen = self._at_least_one(draws < self.mask_probability, special)
        fate = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
        words = torch.randint(self.vocabulary_size, input_ids.shape, generator=generator)
        masked = chosen & (fate < MASKED_SHARE)
        replaced = chosen & (fate >= MASKED_SHARE) & (fate < MASKED_SHARE + RANDOM_SHARE)
        result = input_ids.masked_fill(masked, self.mask_token_id)
        result = torch.where(replaced, words.to(input_ids.device), result)
        return result, input_ids.masked_fill(~chosen, IGNORED)

    @staticmethod
    def _at_least_one(chosen: torch.Tensor, special: torch.Tensor) -> torch.Tensor:
        """Leave special tokens out; choose the first ordinary one where none is left at all.

        A batch without a target would teach nothing.
        """
        chosen = chosen & ~special
        if not chosen.any():
            first = (~special).flatten().int().argmax()
            chosen.view(-1)[first] = ~special.flatten()[first]
        return chosen
