"""ELECTRA (Clark et al. 2020, arXiv 2003.10555): detect tokens that a small generator replaced.

A share of the tokens is chosen, and all of them become [MASK] (section 2). The generator G, a
masked-language model, is trained on them, and a token is sampled from its distribution at each. The
discriminator D reads the text with the samples and predicts for every token, including special
ones, whether it is the original; a sample that equals the original counts as such.

    Loss = cross-entropy of G over the chosen tokens
         + 50 * binary cross-entropy of D over all tokens

No gradient flows from D through the sampling into G (section 2). Both share the embeddings of
tokens, positions and types, and G's output is tied to them (section 3.2). G has a quarter of D's
width, feed-forward part and heads, and as many layers. D is the written model. The step seeds the
samples, also held-out ones.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.func import functional_call
from torch.nn import functional
from transformers import (
    BertConfig,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.models.classifier import model_inputs
from bertender.training.examples import TensorBatch
from bertender.training.heads.head import divisor
from bertender.training.steps import LossParts, Objective
from distill.pretraining.masking import Masking, step_generator
from distill.pretraining.objectives import PretrainingModule, shared_settings

DISCRIMINATOR_WEIGHT = 50.0
EMBEDDINGS = "electra.embeddings"
GENERATOR_SHARE = 4
"""Ratio of the discriminator's width to the generator's."""


class ReplacedTokens:
    """Objective that chooses tokens, and draws a random number for each sample."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> None:
        self.masking = Masking(tokenizer, share)
        self.seed = seed

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        input_ids = batch["input_ids"]
        generator = step_generator(self.seed, step)
        chosen = self.masking.chosen(input_ids, generator)
        draws = torch.rand(input_ids.shape, generator=generator).to(input_ids.device)
        masked_ids = input_ids.masked_fill(chosen, self.masking.mask_token_id)
        parts: LossParts = model(batch, masked_ids, chosen, draws)
        return parts


class ReplacedTokensModule(PretrainingModule):
    """A discriminator (ElectraForPreTraining) with its generator."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.generator: Any = generator_of(model)

    @classmethod
    def untrained(cls, shape: BertConfig) -> PreTrainedModel:
        """Build a discriminator whose embeddings are as wide as its layers."""
        config = ElectraConfig(embedding_size=shape.hidden_size, **shared_settings(shape))
        return ElectraForPreTraining(config)

    @classmethod
    def objective(cls, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> Objective:
        return ReplacedTokens(tokenizer, share, seed)

    def forward(
        self,
        batch: TensorBatch,
        masked_ids: torch.Tensor,
        chosen: torch.Tensor,
        draws: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Return the weighted parts of the loss.

        Args:
            batch: original tokens and their attention mask.
            masked_ids: input of the generator, (batch, seq).
            chosen: mask of chosen tokens, (batch, seq).
            draws: random numbers from 0 to 1 for the generator's samples, (batch, seq).
        """
        original = batch["input_ids"]
        guesses = self._guesses({**batch, "input_ids": masked_ids}, chosen)
        replaced = original.clone()
        replaced[chosen] = sampled(guesses.detach(), draws[chosen])
        verdicts = self.verdicts({**batch, "input_ids": replaced}).float()
        real = batch["attention_mask"].bool()
        doubts = functional.binary_cross_entropy_with_logits(
            verdicts[real], (replaced != original)[real].float(), reduction="sum"
        ) / divisor(real.sum().float())
        return {
            "generator": functional.cross_entropy(guesses, original[chosen], reduction="sum")
            / divisor(chosen.sum().float()),
            "discriminator": DISCRIMINATOR_WEIGHT * doubts,
        }

    def verdicts(self, batch: TensorBatch) -> torch.Tensor:
        """Return the discriminator's logits of "replaced", (batch, seq)."""
        logits: torch.Tensor = self.model(**model_inputs(self.model, batch)).logits
        return logits

    def _guesses(self, batch: TensorBatch, chosen: torch.Tensor) -> torch.Tensor:
        """Return the generator's logits at the chosen tokens: (chosen tokens, vocab)."""
        encoder = self.generator.base_model
        states = encoder(**model_inputs(encoder, batch)).last_hidden_state[chosen]
        narrow = self.generator.generator_predictions(states)
        logits: torch.Tensor = self.generator.generator_lm_head(narrow)
        return logits.float()


class DisentangledTokensModule(ReplacedTokensModule):
    """Gradient-disentangled embedding sharing (DeBERTa-v3, He et al. 2021, arXiv 2111.09543, 3.2).

    The generator's loss pulls embeddings of similar words together, the discriminator's pushes them
    apart. The discriminator therefore reads

        E_D = sg(E_G) + E_delta

    where sg stops the gradient: E_G learns from the generator alone, and E_delta, which starts at
    zero, from the discriminator alone. The saved model has their sum. As in ELECTRA, embeddings of
    tokens, positions and types are shared; the paper's model lacks the latter two. Each model has
    its own layer norm after them. E_G starts from the discriminator's embeddings.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        own = self.generator.electra.embeddings = copy.deepcopy(model.get_submodule(EMBEDDINGS))
        self.generator.tie_weights()
        self.tables = [
            name for name, part in own.named_modules() if isinstance(part, torch.nn.Embedding)
        ]
        with torch.no_grad():
            for name in self.tables:
                model.get_parameter(f"{EMBEDDINGS}.{name}.weight").zero_()

    def summed(self) -> dict[str, torch.Tensor]:
        """Return E_D: the discriminator's tables by name, (entries, width)."""
        own = self.generator.electra.embeddings
        names = {f"{EMBEDDINGS}.{name}.weight": f"{name}.weight" for name in self.tables}
        return {
            name: own.get_parameter(theirs).detach() + self.model.get_parameter(name)
            for name, theirs in names.items()
        }

    def verdicts(self, batch: TensorBatch) -> torch.Tensor:
        inputs = model_inputs(self.model, batch)
        logits: torch.Tensor = functional_call(self.model, self.summed(), (), inputs).logits
        return logits

    def finished(self) -> PreTrainedModel:
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.summed(), strict=False)
        return model


def sampled(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return a token for each row of logits, by inverting its cumulative distribution.

    Args:
        logits: (tokens, vocab).
        draws: uniform between 0 and 1, (tokens,).
    """
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    # through rounding, the sum can be slightly below 1
    return (cumulative < draws[:, None]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)


def generator_of(discriminator: PreTrainedModel) -> PreTrainedModel:
    """Build the generator of a discriminator, which shares the discriminator's embeddings."""
    config: Any = discriminator.config
    heads = max(1, config.num_attention_heads // GENERATOR_SHARE)
    width = heads * max(1, config.hidden_size // GENERATOR_SHARE // heads)
    small = ElectraConfig.from_dict(config.to_dict())
    small.update(
        {
            "hidden_size": width,
            "num_attention_heads": heads,
            "intermediate_size": max(1, config.intermediate_size // GENERATOR_SHARE),
        }
    )
    generator: Any = ElectraForMaskedLM(small)
    generator.electra.embeddings = discriminator.get_submodule(EMBEDDINGS)
    generator.tie_weights()
    tied: PreTrainedModel = generator
    return tied
