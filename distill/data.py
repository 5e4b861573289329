"""A task's examples as token columns, and the tokenizer that fits the model they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.hub_code import open_pretrained
from bertender.models.families import FAMILIES, family_name
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
    longest = min(longest_input(own), _positions(model) or longest_input(own))
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


def _positions(model: PreTrainedModel) -> int:
    """Return how many tokens the model has positions for; 0 where it does not state it."""
    family = FAMILIES.get(family_name(model.config))
    positions = getattr(model.config, "max_position_embeddings", None) or 0
    return max(positions - (family.first_position(model.config) if family else 0), 0)
