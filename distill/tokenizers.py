"""Tokenizers that fit a model: its inputs, its longest text, and repairs.

Tokenizers of some architectures are changed so that their model can classify batches of texts.
Some were made for generating: GPT-2's cannot pad and puts nothing between two texts, T5's takes
the end token from the text itself. Others lost what puts special tokens around texts when they
were converted. What is changed here is saved with the tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers.normalizers import Replace, Sequence
from tokenizers.processors import TemplateProcessing
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from bertender.core.card import CARD_NAME, read_card
from bertender.models.classifier import input_names
from bertender.models.families import most_tokens
from bertender.text.batch import Example, batched
from bertender.text.tokenizer import load_by_transformers, longest_input

logger = logging.getLogger(__name__)

READING_THE_LAST_TOKEN = frozenset({"xlnet"})
"""Architectures that predict at the last token, padding or not: theirs must stand in front. Every
other one counts positions from the front, so that padding there would change its logits."""

FRAME = ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
"""Special tokens around a text, and around a pair of texts: BERT's."""
FRAMES = {
    **dict.fromkeys(
        ("camembert", "mpnet", "roberta", "xlm-roberta"),
        ("{cls} $A {sep}", "{cls} $A {sep} {sep} $B {sep}"),
    ),
    "modernbert": ("{cls} $A {sep}", "{cls} $A {sep} $B {sep}"),
    "xlnet": ("$A {sep} {cls}:2", "$A {sep} $B:1 {sep}:1 {cls}:2"),
}
"""model_type -> those of other architectures."""
ANY_TEXT = "a"
TEXTS_AT_ONCE = 1000


def fitting_tokenizer(
    source: str, model: PreTrainedModel, *, finished: bool = False, **settings: Any
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that gives what `model` takes: these inputs, and no longer ones.

    Many tokenizers were saved for another model (BERT's gives segments, which DistilBERT refuses)
    or state no length at all; some lack more (see `fill_gaps`).

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
    longest, positions, card = (
        longest_input(own),
        most_tokens(model.config),
        Path(source) / CARD_NAME,
    )
    if positions and card.is_file() and read_card(card.parent).max_length:
        longest = positions  # what an artifact was truncated to suited its task, and binds no other
    elif positions:
        longest = min(longest, positions)
    settings = {**settings, "model_input_names": names, "model_max_length": longest}
    tokenizer = _load(source, **settings, **gap_settings(model.config))
    fill_gaps(tokenizer, model.config, finished=finished)
    return tokenizer


def _load(source: str, **settings: Any) -> PreTrainedTokenizerBase:
    try:
        return load_by_transformers(source, local_files_only=Path(source).is_dir(), **settings)
    except TypeError:  # it looks for the file of a tokenizer without asking whether there is one
        raise ValueError("it has no tokenizer") from None


def gap_settings(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings that a tokenizer must be loaded with, to serve a model of this config."""
    side = "left" if config.model_type in READING_THE_LAST_TOKEN else "right"
    # else special tokens that a text happens to spell would be read as such
    apart = {"split_special_tokens": True} if config.is_encoder_decoder else {}
    return {"padding_side": side, **apart}


def fill_gaps(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, *, finished: bool = False
) -> None:
    """Change a tokenizer so that a classifier of this config predicts each text by itself.

    Args:
        tokenizer: it is changed in place.
        config: the model's.
        finished: the tokenizer is that of a trained classifier, which reads texts as it puts them:
            nothing is put around them that was not.

    Raises:
        ValueError: it has no token that it could pad with.
    """
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError("its tokenizer has neither a pad token nor an end of text to pad with")
        tokenizer.pad_token = tokenizer.eos_token
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return
    if not finished:
        if lacks_frame(tokenizer):
            frame_texts(tokenizer, config.model_type)
        elif (end := tokenizer.eos_token) and not tokenizer.num_special_tokens_to_add(pair=True):
            # after each text, as pre-training does: it parts the two of a pair
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                f"$A {end}", f"$A {end} $B {end}", [(end, tokenizer.eos_token_id)]
            )
    if config.is_encoder_decoder:
        _keep_the_end_unspelt(tokenizer)


def lacks_frame(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer names tokens for both ends of a text and puts neither there."""
    ends = {tokenizer.cls_token_id, tokenizer.sep_token_id}
    return None not in ends and ends.isdisjoint(tokenizer(ANY_TEXT)["input_ids"])


def frame_texts(tokenizer: PreTrainedTokenizerFast, model_type: str) -> None:
    """Put the special tokens of an architecture around texts, with a warning in the log."""
    ends = {"cls": str(tokenizer.cls_token), "sep": str(tokenizer.sep_token)}
    single, pair = (each.format(**ends) for each in FRAMES.get(model_type, FRAME))
    numbers = [(str(ends[name]), getattr(tokenizer, f"{name}_token_id")) for name in ends]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single, pair, numbers)
    logger.warning(
        "the tokenizer puts no %s and %s around texts, although it names them: it does from here "
        "on, as a %s model reads them",
        *ends.values(),
        model_type,
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


@dataclass(frozen=True)
class TokenUse:
    """Counts of tokens in texts, and the special tokens of a tokenizer."""

    counts: torch.Tensor
    """(tokens,), how often each occurs."""
    special: tuple[int, ...]
    """Tokens that stand for no part of a text, [CLS] and padding among them."""
    before: tuple[int, ...] = ()
    """Special tokens in front of a text."""
    after: tuple[int, ...] = ()
    """Special tokens behind a text."""


def token_use(tokenizer: PreTrainedTokenizerBase, examples: Iterable[Example]) -> TokenUse:
    """Return how a tokenizer frames texts, and how often its tokens occur in examples."""
    counts = torch.zeros(len(tokenizer), dtype=torch.long)
    texts = (text for example in examples for text in example if text)
    for batch in batched(texts, TEXTS_AT_ONCE):
        rows = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        counts += torch.bincount(tokens, minlength=len(tokenizer))
    # a text with an unknown token has a part that the table can learn of
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    framed: list[int] = tokenizer(ANY_TEXT)["input_ids"]
    text: list[int] = tokenizer(ANY_TEXT, add_special_tokens=False)["input_ids"]
    start = next(at for at in range(len(framed)) if framed[at : at + len(text)] == text)
    frame = tuple(framed[:start]), tuple(framed[start + len(text) :])
    return TokenUse(counts, tuple(sorted(special)), *frame)
