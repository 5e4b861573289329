"""SpanBERT (Joshi et al. 2019, arXiv 1907.10529): masked spans, predicted from their boundaries."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.problems.problem import NO_LABEL
from bertender.training.examples import TensorBatch
from bertender.training.heads import hard_labels
from distill.pretraining.masking import Masking, WordSpans, continues_word, each_run, run_bounds
from distill.pretraining.objectives import MaskedBatch, PretrainingModule

SPAN_LENGTHS = tuple(0.2 * 0.8**longer for longer in range(10))
"""How often a span has 1 to 10 words, as weights."""
PLACE_WIDTH = 200


def span_prediction(
    tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
) -> MaskedBatch:
    """Build the objective: spans of whole words are masked, each as a whole.

    Raises:
        ModelError: the tokenizer does not mark words.
    """
    choose = WordSpans(continues_word(tokenizer), SPAN_LENGTHS, int(tokenizer.pad_token_id))
    return MaskedBatch(Masking(tokenizer, mask_probability, choose, each_run), seed)


class BoundaryHead(nn.Module):
    """Predicts a token of a span from the tokens next to the span, and its place in it."""

    def __init__(self, hidden_size: int, places: int, vocabulary_size: int, eps: float) -> None:
        super().__init__()
        self.places = nn.Embedding(places, PLACE_WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(2 * hidden_size + PLACE_WIDTH, hidden_size),
            nn.GELU(),
            nn.LayerNorm(hidden_size, eps=eps),
            nn.Linear(hidden_size, hidden_size),
            nn.GELU(),
            nn.LayerNorm(hidden_size, eps=eps),
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(
        self, states: torch.Tensor, chosen: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Return logits (chosen tokens, vocab).

        Args:
            states: of the encoder, (batch, seq, hidden).
            chosen: which tokens are asked for, (batch, seq), none of them first or last in a row.
            words: the table of word embeddings, (vocab, hidden).
        """
        first, last = run_bounds(chosen)
        row, place = chosen.nonzero(as_tuple=True)
        first, last = first[chosen], last[chosen]
        before, after = states[row, first - 1], states[row, last + 1]
        read = torch.cat([before, after, self.places(place - first)], dim=-1)
        logits: torch.Tensor = self.layers(read) @ words.T + self.bias
        return logits


class SpanModule(PretrainingModule):
    """A BERT with a masked-language head and the boundary head."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        config = model.config
        self.boundary = self.with_own_weights(
            BoundaryHead(
                config.hidden_size,
                config.max_position_embeddings,
                config.vocab_size,
                config.layer_norm_eps,
            )
        )

    def forward(self, batch: TensorBatch) -> dict[str, torch.Tensor]:
        """Return the parts of the loss on a masked batch."""
        states = self.encoded(batch).last_hidden_state
        targets = batch["targets"]
        chosen = targets != NO_LABEL
        words = self.model.get_input_embeddings().weight
        from_boundaries = self.boundary(states, chosen, words)
        return {
            "mlm": hard_labels(self.model.get_submodule("cls")(states), targets),
            "sbo": hard_labels(from_boundaries, targets[chosen]),
        }
