"""ALBERT (Lan et al. 2019, arXiv 1909.11942): n-gram masking and sentence-order prediction.

Model: the ALBERT class, one layer shared by all depths and embeddings of 128 that a linear layer
brings to the width (sections 3.1).
Masks: n-grams of whole words, of length n <= 3 with p(n) = (1/n) / sum_k (1/k) (section 4.1), until
the share of tokens is used up; 80/10/10 by token.
Rows: two consecutive segments, in their order or, in half of them, swapped. A linear layer over
the pooled [CLS] predicts which (section 3.1). Loss = masked tokens + order, both means.
Departures: the vocabulary is whatever `pretrain` trains, not SentencePiece's of 30,000; AdamW
instead of LAMB.
"""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.corpora.segment_pairs import SENTENCE_ORDER
from distill.corpora.word_boundaries import continues_word
from distill.objectives.masking import Masking, WordSpans
from distill.objectives.pairs import RelatedPairs
from distill.objectives.pretraining_module import MaskedBatch

__all__ = ["sentence_order_module", "sentence_order_prediction"]

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
