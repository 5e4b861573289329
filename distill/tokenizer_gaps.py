"""Fixes for tokenizers of some architectures, so that their model can classify batches of texts.

They were made for generating: GPT-2's cannot pad and puts nothing between two texts, T5's takes
the end token from the text itself. What is changed here is saved with the tokenizer.
"""

from __future__ import annotations

from typing import Any

from tokenizers.normalizers import Replace, Sequence
from tokenizers.processors import TemplateProcessing
from transformers import PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

__all__ = ["fill_gaps", "gap_settings"]

READING_THE_LAST_TOKEN = frozenset({"xlnet"})
"""Architectures that predict at the last token, padding or not: theirs must stand in front. Every
other one counts positions from the front, so that padding there would change its logits."""


def gap_settings(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings that a tokenizer must be loaded with, to serve a model of this config."""
    side = "left" if config.model_type in READING_THE_LAST_TOKEN else "right"
    # else special tokens that a text happens to spell would be read as such
    apart = {"split_special_tokens": True} if config.is_encoder_decoder else {}
    return {"padding_side": side, **apart}


def fill_gaps(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> None:
    """Change a tokenizer so that a classifier of this config predicts each text by itself.

    Raises:
        ValueError: it has no token that it could pad with.
    """
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError("its tokenizer has neither a pad token nor an end of text to pad with")
        tokenizer.pad_token = tokenizer.eos_token
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return
    if tokenizer.eos_token and tokenizer.num_special_tokens_to_add(pair=True) == 0:
        _end_texts(tokenizer)
    if config.is_encoder_decoder:
        _keep_the_end_unspelt(tokenizer)


def _end_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    """Put the end of text after each text, as pre-training does: it parts the two of a pair."""
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        f"$A {end}", f"$A {end} $B {end}", [(end, tokenizer.eos_token_id)]
    )


def _keep_the_end_unspelt(tokenizer: PreTrainedTokenizerFast) -> None:
    """Break the end token apart where a text spells it.

    Encoder-decoders classify by the state of the last one and refuse texts that have more of them
    than others. Unigram vocabularies hold it as a token like any other.
    """
    end = tokenizer.eos_token
    if tokenizer(end, add_special_tokens=False)["input_ids"].count(tokenizer.eos_token_id) == 0:
        return
    backend = tokenizer.backend_tokenizer
    apart = Replace(end, f"{end[0]} {end[1:]}")
    backend.normalizer = Sequence([backend.normalizer, apart]) if backend.normalizer else apart
