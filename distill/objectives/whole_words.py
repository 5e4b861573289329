"""Whole-word masking (the 2019 update of BERT's published code; Devlin et al., arXiv 1810.04805).

As masked-language modelling, but words are chosen instead of tokens, and all tokens of a
chosen word are predicted together. Each token becomes [MASK], a random token or stays by a draw
of its own, as in the published code. A word that would go beyond the share of tokens is passed
over there as here, so that long words are chosen a little more rarely.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from distill.corpora.word_boundaries import continues_word
from distill.objectives.masked_language_model import MaskedLanguageModel
from distill.objectives.masking import WordSpans

__all__ = ["whole_word_masking"]

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
