"""A tokenizer in the place of one that is not trained yet, for shapes that do not depend on it."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["stand_in_tokenizer"]

PADDING = "[PAD]"


def stand_in_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer that has padding and no more."""
    model = WordLevel({PADDING: 0}, unk_token=PADDING)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), pad_token=PADDING)
