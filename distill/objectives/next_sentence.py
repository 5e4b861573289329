"""Masked tokens and next-sentence prediction (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

Rows are [CLS] A [SEP] B [SEP] with token types 0 and 1; B follows A in half of them, else it comes
from elsewhere (`distill.corpora.segment_pairs`). A linear layer over the pooled [CLS] predicts
which. Loss = cross-entropy over the masked tokens + that of the relation, both means (A.2).
Departure: masks are drawn anew for every batch, not ten times for the whole corpus.
"""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distill.corpora.segment_pairs import NEXT_SENTENCE
from distill.objectives.masking import Masking
from distill.objectives.pairs import RelatedPairs
from distill.objectives.pretraining_module import MaskedBatch

__all__ = ["next_sentence_module", "next_sentence_prediction"]


def next_sentence_prediction(
    tokenizer: PreTrainedTokenizerBase, mask_probability: float, seed: int
) -> MaskedBatch:
    """Build the objective: single tokens are masked."""
    return MaskedBatch(Masking(tokenizer, mask_probability), seed)


def next_sentence_module(model: PreTrainedModel) -> RelatedPairs:
    """Put a head over the pooled [CLS] next to a BERT with a pooler."""
    return RelatedPairs(model, language_head="cls", relation="nsp", label=NEXT_SENTENCE)
