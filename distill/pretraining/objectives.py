"""Objectives of pre-training on masked tokens, whole words, word order and pairs of segments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.problems.problem import NO_LABEL
from bertender.training.examples import TensorBatch, model_inputs
from bertender.training.heads import hard_labels
from bertender.training.loop import LossParts
from distill.pretraining.masking import (
    Chooser,
    Masking,
    WordSpans,
    continues_word,
    single_tokens,
    step_generator,
)
from distill.pretraining.segment_pairs import NEXT_SENTENCE, SENTENCE_ORDER
from distill.students.albert import EMBEDDING_SIZE

# --- from distill.objectives.pretraining_module
# Training module of pre-training: the model that is written, and what only its training needs.
#
# A head that the training alone needs is a module next to the model, in a subclass whose forward
# takes a corrupted batch and returns the parts of the loss. The loss is computed inside the
# module,
# so that a distributed run sees which parameters it used.


class PretrainingModule(nn.Module):
    """Holds the model that is written in the end.

    Args:
        model: an encoder with a head of transformers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def finished(self) -> PreTrainedModel:
        """Return the model, without the modules of its training."""
        return self.model

    def encoded(self, batch: TensorBatch) -> Any:
        """Return the outputs of the encoder below the head: states (batch, seq, hidden), pooled."""
        encoder = self.model.base_model
        return encoder(**model_inputs(encoder, batch))

    def with_own_weights(self, head: nn.Module) -> nn.Module:
        """Draw the weights of a new head as those of the model were drawn."""
        return head.apply(self.model._init_weights)


class OwnHead(PretrainingModule):
    """A model that learns through its own head alone."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Any:
        """Return the model's own outputs."""
        return self.model(input_ids, attention_mask, token_type_ids)


class MaskedBatch:
    """The objective of a pretraining module that computes its loss itself, on masked tokens."""

    def __init__(self, masking: Masking, seed: int) -> None:
        self.masking = masking
        self.seed = seed

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        masked = self.masking.masked_batch(batch, step_generator(self.seed, step))
        parts: LossParts = model(masked)
        return parts


# --- from distill.objectives.masked_language_model
# Masked-language modelling (Devlin et al. 2018, arXiv 1810.04805, section 3.1).
#
# A share of the tokens is chosen; of these, 80 % become [MASK], 10 % a random token, 10 % stay.
# The masks are drawn anew for every batch, from the seed and the step, without
# next-sentence prediction (Liu et al. 2019, arXiv 1907.11692, section 4.1). `pretrain` trains on
# rows of full sentences (section 4.2), `distill-general` on dense blocks.
# The loss is the cross-entropy over the chosen tokens.


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


# --- from distill.objectives.whole_words
# Whole-word masking (the 2019 update of BERT's published code; Devlin et al., arXiv 1810.04805).
#
# As masked-language modelling, but words are chosen instead of tokens, and all tokens of a
# chosen word are predicted together. Each token becomes [MASK], a random token or stays by a draw
# of its own, as in the published code. A word that would go beyond the share of tokens is passed
# over there as here, so that long words are chosen a little more rarely.

ONE_WORD = (1.0,)


def whole_word_masking(
    tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
) -> MaskedLanguageModel:
    """Build masked-language modelling that chooses whole words.

    Raises:
        ModelError: the tokenizer does not mark words.
    """
    choose = WordSpans(continues_word(tokenizer), ONE_WORD)
    return MaskedLanguageModel(tokenizer, mask_probability, seed, choose)


# --- from distill.objectives.word_order
# StructBERT's word-order objective (Wang et al. 2019, arXiv 1908.04577, section 2.2).
#
# After tokens are masked as usual, 5 % of the trigrams of tokens that are not asked for are put
# into a random order, and the masked-language head predicts at each of their places the token
# that
# stood there. Loss = cross-entropy over the masked tokens + cross-entropy over the shuffled
# places,
# each a mean, of equal weight as in the paper.
# Trigrams are disjoint, counted from a random place among the first three of a batch, and lie
# within
# neither special tokens nor padding. A random order is the old one once in six times.
# Left out: the sentence-structural objective (section 2.3: next, previous or other sentence).

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


# --- from distill.objectives.pairs
# Pairs of segments: the relation of the two is learned with the masked tokens.
#
# The relation is read from the pooled state of [CLS] by a linear layer over two classes, which
# only
# the training needs; the pooler stays in the model, for a classifier to start from.


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


# --- from distill.objectives.next_sentence
# Masked tokens and next-sentence prediction (Devlin et al. 2018, arXiv 1810.04805, section 3.1).
#
# Rows are [CLS] A [SEP] B [SEP] with token types 0 and 1; B follows A in half of them, else it
# comes
# from elsewhere (`distill.corpora.segment_pairs`). A linear layer over the pooled [CLS] predicts
# which. Loss = cross-entropy over the masked tokens + that of the relation, both means (A.2).
# Departure: masks are drawn anew for every batch, not ten times for the whole corpus.


def next_sentence_prediction(
    tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
) -> MaskedBatch:
    """Build the objective: single tokens are masked."""
    return MaskedBatch(Masking(tokenizer, mask_probability), seed)


def next_sentence_module(model: PreTrainedModel) -> RelatedPairs:
    """Put a head over the pooled [CLS] next to a BERT with a pooler."""
    return RelatedPairs(model, language_head="cls", relation="nsp", label=NEXT_SENTENCE)


# --- from distill.objectives.sentence_order
# ALBERT (Lan et al. 2019, arXiv 1909.11942): n-gram masking and sentence-order prediction.
#
# Model: the ALBERT class, one layer shared by all depths and embeddings of 128 that a linear
# layer
# brings to the width (sections 3.1).
# Masks: n-grams of whole words, of length n <= 3 with p(n) = (1/n) / sum_k (1/k) (section 4.1),
# until
# the share of tokens is used up; 80/10/10 by token.
# Rows: two consecutive segments, in their order or, in half of them, swapped. A linear layer over
# the pooled [CLS] predicts which (section 3.1). Loss = masked tokens + order, both means.
# Departures: the vocabulary is whatever `pretrain` trains, not SentencePiece's of 30,000; AdamW
# instead of LAMB.

N_GRAMS = (1, 1 / 2, 1 / 3)
"""How often n-grams of 1, 2 and 3 words are chosen, as weights."""


def sentence_order_prediction(
    tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
) -> MaskedBatch:
    """Build the objective: n-grams are masked.

    Raises:
        ModelError: the tokenizer does not mark words.
    """
    choose = WordSpans(continues_word(tokenizer), N_GRAMS)
    return MaskedBatch(Masking(tokenizer, mask_probability, choose), seed)


def sentence_order_module(model: PreTrainedModel) -> RelatedPairs:
    """Put a head over the pooled [CLS] next to an ALBERT with a pooler."""
    return RelatedPairs(model, language_head="predictions", relation="sop", label=SENTENCE_ORDER)


# --- from distill.objectives.models
# The models that pre-training builds, untrained, from the shape of a BERT.

SHAPE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "pad_token_id",
)
"""Settings that ALBERT and ELECTRA share with the shape of a BERT, by their common names."""


def bert(shape: BertConfig) -> PreTrainedModel:
    """Build a BERT with a masked-language head."""
    return BertForMaskedLM(shape)


def bert_with_pooler(shape: BertConfig) -> PreTrainedModel:
    """Build a BERT with a masked-language head and a pooler."""
    return _with_pooler(BertForMaskedLM(shape))


def albert_with_pooler(shape: BertConfig) -> PreTrainedModel:
    """Build an ALBERT of one shared layer with a masked-language head and a pooler."""
    embedding_size = min(EMBEDDING_SIZE, shape.hidden_size)
    return _with_pooler(
        AlbertForMaskedLM(AlbertConfig(embedding_size=embedding_size, **_shared(shape)))
    )


def electra(shape: BertConfig) -> PreTrainedModel:
    """Build an ELECTRA discriminator whose embeddings are as wide as its layers."""
    config = ElectraConfig(embedding_size=shape.hidden_size, **_shared(shape))
    return ElectraForPreTraining(config)


def _with_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model the pooler that transformers leaves out under a masked-language head."""
    setattr(model, model.base_model_prefix, type(model.base_model)(model.config))
    model.tie_weights()
    return model


def _shared(shape: BertConfig) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in SHAPE}
