"""Pre-training objectives on masked tokens, masked words, word order and spans, and held-out loss.

An objective has a model, heads that only training needs, and a loss. `pretrain.TRAINING_MODULES`
has the class of each objective in OBJECTIVES.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import model_inputs
from bertender.text.batch import length_buckets
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads.head import hard_labels
from bertender.training.steps import LossParts, Objective
from distill.pretraining.config import FULL_SENTENCES
from distill.pretraining.masking import (
    Chooser,
    Masking,
    WordSpans,
    run_bounds,
    single_tokens,
    step_generator,
    word_marks,
)
from distill.pretraining.rows import TokenRow, full_sentence_rows

HELD_OUT_STEP = 2**31
"""Step number that seeds held-out masks, beyond all training steps."""
TOKENS_PER_BATCH = 8192
SPAN_LENGTHS = tuple(0.2 * 0.8**longer for longer in range(10))
"""Weights of spans of 1 to 10 words."""
PLACE_WIDTH = 200
SHUFFLED_SHARE = 0.05
LENGTH = 3
"""Length of a shuffled n-gram, in tokens."""
ORDER_TARGETS = "order_targets"
"""Column: the original tokens at shuffled positions, NO_LABEL elsewhere."""
SHAPE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "pad_token_id",
)
"""Settings that ALBERT and ELECTRA share with BERT by name."""


def shared_settings(shape: BertConfig) -> dict[str, Any]:
    """Return the settings of a BERT's shape that other architectures share by name."""
    return {name: getattr(shape, name) for name in SHAPE}


class PretrainingModule(nn.Module):
    """Base of training modules: a model with the heads of an objective.

    Heads that only training needs are modules next to the model. Subclasses with such heads compute
    the parts of the loss in `forward`, from a corrupted batch, so that a distributed run sees the
    used parameters.

    Args:
        model: an encoder with a head of transformers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @classmethod
    def untrained(cls, shape: BertConfig) -> PreTrainedModel:
        """Build the model from the shape of a BERT."""
        return BertForMaskedLM(shape)

    @classmethod
    def rows(
        cls,
        passages: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        seed: int,
        packing: str = FULL_SENTENCES,
    ) -> Iterator[TokenRow]:
        """Yield examples of at most `max_length` tokens from passages, an empty one ending each
        document."""
        return full_sentence_rows(passages, tokenizer, max_length, packing)

    @classmethod
    def chooser(cls, tokenizer: PreTrainedTokenizerBase) -> Chooser:
        """Return the chooser of tokens to predict.

        Raises:
            ModelError: the tokenizer does not mark words, which are chosen whole.
        """
        return single_tokens

    @classmethod
    def objective(cls, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> Objective:
        """Build the objective, which predicts a share of the tokens.

        Raises:
            ModelError: the tokenizer does not mark words, which are masked whole.
        """
        return MaskedBatch(Masking(tokenizer, share, cls.chooser(tokenizer)), seed)

    def finished(self) -> PreTrainedModel:
        """Return the model, without the modules of its training."""
        return self.model

    def encoded(self, batch: TensorBatch) -> Any:
        """Return the outputs of the encoder below the head: states (batch, seq, hidden), pooled."""
        encoder = self.model.base_model
        return encoder(**model_inputs(encoder, batch))

    def with_own_weights(self, head: nn.Module) -> nn.Module:
        """Initialise the weights of a new head like the model's."""
        return head.apply(self.model._init_weights)


class MaskedBatch:
    """Objective on masked tokens, for a module that computes its own loss."""

    def __init__(self, masking: Masking, seed: int) -> None:
        self.masking = masking
        self.seed = seed

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        masked = self.masking.masked_batch(batch, step_generator(self.seed, step))
        parts: LossParts = model(masked)
        return parts


class MaskedLanguageModel:
    """Masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

    Masks are dynamic: drawn for every batch from the seed and the step (Liu et al. 2019, arXiv
    1907.11692, section 4.1). There is no next-sentence prediction. `pretrain` trains on rows of
    full sentences (section 4.2), `distill-general` on dense blocks. The loss is the cross-entropy
    over the chosen tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        share: float,
        seed: int,
        choose: Chooser = single_tokens,
    ) -> None:
        self.masking = Masking(tokenizer, share, choose)
        self.seed = seed

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        batch = self.masked_batch(batch, step)
        logits = model(**model_inputs(model, batch)).logits
        return {"mlm": hard_labels(logits, batch["targets"])}

    def masked_batch(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return the batch with this step's masks and its `targets` (batch, seq)."""
        return self.masking.masked_batch(batch, step_generator(self.seed, step))


class MaskedTokens(PretrainingModule):
    """Training module of masked-language modelling, through the model's own head."""

    @classmethod
    def objective(cls, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> Objective:
        return MaskedLanguageModel(tokenizer, share, seed, cls.chooser(tokenizer))

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Any:
        """Return the model's own outputs."""
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **segments)


class MaskedWholeWords(MaskedTokens):
    """Whole-word masking (the 2019 update of BERT's published code; Devlin et al., 1810.04805).

    Words are chosen instead of tokens, and all tokens of a chosen word are predicted together. Each
    token becomes [MASK], random or unchanged independently, and a word that would exceed the share
    of tokens is skipped, both as in the published code. Long words are thus chosen a little less
    often.
    """

    @classmethod
    def chooser(cls, tokenizer: PreTrainedTokenizerBase) -> Chooser:
        return WordSpans(word_marks(tokenizer), lengths=(1.0,))


class MaskedPhrases(MaskedWholeWords):
    """ERNIE's phrase and entity masks (Sun et al. 2019, arXiv 1904.09223): see `PhraseSpans`.

    `pretrain` gives the phrases to its objective; without any, words are masked.
    """


class ShuffledWords(MaskedTokens):
    """StructBERT's word structural objective (Wang et al. 2019, arXiv 1908.04577, 2.2).

    `segment_pairs.StructuredPairs` has the sentence structural objective besides.
    """

    @classmethod
    def objective(cls, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> Objective:
        return WordOrder(tokenizer, share, seed)


class WordOrder(MaskedLanguageModel):
    """Mask a batch, shuffle trigrams of the other tokens, and predict the original tokens.

    After the usual masking, 5 % of the trigrams of other tokens are shuffled, and the
    masked-language head predicts the original token at each of their positions. Loss =
    cross-entropy over the masked tokens + cross-entropy over the shuffled positions, each a mean,
    of equal weight as in the paper. Trigrams are disjoint, start at a random one of the first three
    positions of a batch, and have no special tokens or padding. One random order in six is the
    original one.
    """

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        batch = self.masked_batch(batch, step)
        logits = model(**model_inputs(model, batch)).logits
        return {
            "mlm": hard_labels(logits, batch["targets"]),
            "word_order": hard_labels(logits, batch[ORDER_TARGETS]),
        }

    def masked_batch(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return the batch masked and shuffled, with `targets` and ORDER_TARGETS (batch, seq)."""
        generator = step_generator(self.seed, step)
        masked_ids, masked = self.masking(batch["input_ids"], generator)
        free = self.masking.ordinary(batch["input_ids"]) & (masked == NO_LABEL)
        input_ids, shuffled = self.shuffled(masked_ids, free, generator)
        return {**batch, "input_ids": input_ids, "targets": masked, ORDER_TARGETS: shuffled}

    def shuffled(
        self, input_ids: torch.Tensor, free: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids with shuffled trigrams, and the original ids there, both (batch, seq).

        Args:
            input_ids: (batch, seq).
            free: mask of tokens that may move, (batch, seq).
            generator: source of random numbers.
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


class MaskedSpans(PretrainingModule):
    """SpanBERT (Joshi et al. 2019, arXiv 1907.10529): masked spans, predicted from boundaries too.

    Masks (section 3.1): spans of whole words begin at random words until the share of tokens is
    used up; their length is geometric, p(l) ~ 0.2 * 0.8^(l-1) for l <= 10, which has the paper's
    mean of 3.8. A span is masked (80 %), replaced by random tokens (10 %) or kept (10 %) as a
    whole. Span boundary objective (section 3.2): see `BoundaryHead`. Loss = cross-entropy of the
    masked-language head + of the boundary head, each a mean over the chosen tokens. No
    sentence pairs: rows are of full sentences (section 3.3 has single segments). Departures: a span
    stops at a chosen word, where the paper draws again; touching spans are one span, as in the
    published code; a last word without a following [SEP] is never chosen.
    """

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

    @classmethod
    def objective(cls, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> Objective:
        choose = WordSpans(word_marks(tokenizer), SPAN_LENGTHS, int(tokenizer.pad_token_id))
        return MaskedBatch(Masking(tokenizer, share, choose, whole_runs=True), seed)

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


class BoundaryHead(nn.Module):
    """Predicts a token of a span from the tokens next to the span, and its position in the span.

    Token i of a span from s to e is predicted by

        h0 = [x_(s-1) ; x_(e+1) ; p_(i-s+1)]
        h1 = LayerNorm(GELU(W1 h0))        y = LayerNorm(GELU(W2 h1))

    from the states x of the tokens next to the span and an embedding p of its position (200 wide,
    as in the published code). The decoder is the table of word embeddings, with its own bias.
    """

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
            chosen: mask of chosen tokens, (batch, seq), none of them first or last in a row.
            words: the table of word embeddings, (vocab, hidden).
        """
        first, last = run_bounds(chosen)
        row, place = chosen.nonzero(as_tuple=True)
        first, last = first[chosen], last[chosen]
        before, after = states[row, first - 1], states[row, last + 1]
        read = torch.cat([before, after, self.places(place - first)], dim=-1)
        logits: torch.Tensor = self.layers(read) @ words.T + self.bias
        return logits


def held_out_loss(
    model: torch.nn.Module,
    objective: Objective,
    examples: TokenDataset,
    perplexity_of: str | None = None,
) -> dict[str, float]:
    """Return the held-out loss and its parts, with the same masks every time.

    Each part is a mean over the batches, weighted by their tokens.

    Args:
        model: the training module.
        objective: the loss.
        examples: held-out rows.
        perplexity_of: the part whose exponential is returned as "perplexity", if any.
    """
    model.eval()
    device = next(model.parameters()).device
    sums: dict[str, float] = defaultdict(float)
    tokens = 0
    for step, bucket in enumerate(length_buckets(examples.lengths, TOKENS_PER_BATCH)):
        batch = {name: tensor.to(device) for name, tensor in examples.batch(bucket).items()}
        with torch.inference_mode():
            parts = objective(model, batch, HELD_OUT_STEP + step)
        size = batch["input_ids"].numel()
        tokens += size
        for name, part in parts.items():
            sums[name] += float(part) * size
    means = {name: total / tokens for name, total in sums.items()}
    scores = {"loss": sum(means.values()), **(means if len(means) > 1 else {})}
    if perplexity_of is not None:
        scores["perplexity"] = math.exp(means[perplexity_of])
    return scores
