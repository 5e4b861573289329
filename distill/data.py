"""A task's examples as token columns, and the tokenizer that fits the model they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.card import CARD_NAME, read_card
from bertender.core.hub_code import open_pretrained
from bertender.models.families import most_tokens
from bertender.models.predictor import input_names
from bertender.text.batch import longest_input
from bertender.training.tokens import token_dataset
from distill.tokenizer_gaps import fill_gaps, gap_settings

__all__ = ["fitting_tokenizer", "token_dataset"]


def fitting_tokenizer(
    source: str, model: PreTrainedModel, *, finished: bool = False, **settings: Any
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that gives what `model` takes: these inputs, and no longer ones.

    Many tokenizers were saved for another model (BERT's gives segments, which DistilBERT refuses)
    or state no length at all; some lack more (see tokenizer_gaps).

    Args:
        source: a folder or a hub name.
        model: what its tokens are for.
        finished: `source` is a trained classifier, whose texts stay as its tokenizer puts them.
        settings: more of the tokenizer's own settings.

    Raises:
        OSError, ValueError: there is no tokenizer, it would need code from the hub, or it has
            nothing to pad with.
    """
    own = _load(source)
    names = [name for name in input_names(model) if name in own.model_input_names]
    longest = _longest(source, own, most_tokens(model.config))
    settings = {**settings, "model_input_names": names, "model_max_length": longest}
    tokenizer = _load(source, **settings, **gap_settings(model.config))
    fill_gaps(tokenizer, model.config, finished=finished)
    return tokenizer


def _load(source: str, **settings: Any) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = open_pretrained(
            AutoTokenizer, source, local_files_only=Path(source).is_dir(), **settings
        )
    except TypeError:  # it looks for the file of a tokenizer without asking whether there is one
        raise ValueError("it has no tokenizer") from None
    return tokenizer


def _longest(source: str, tokenizer: PreTrainedTokenizerBase, positions: int | None) -> int:
    """Return the longest input that the model and its tokenizer allow.

    What an artifact was truncated to suited its task, and binds no other.
    """
    card = Path(source) / CARD_NAME
    if positions and card.is_file() and read_card(card.parent).max_length:
        return positions
    return min(longest_input(tokenizer), positions or longest_input(tokenizer))
