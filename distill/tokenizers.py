"""Tokenizers that fit a model: its inputs, its longest text, and repairs.

Tokenizers of some architectures are changed so that their model can classify batches of texts.
Some were made for generation: GPT-2's cannot pad and puts nothing between two texts, T5's accepts
the end token inside a text. Others lost their special tokens around texts when they were converted.
The changes are saved with the tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import normalizers
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
"""Architectures that predict at the last token, so that they must be padded on the left. All others
count positions from the left, so that left padding would change their logits."""

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
"""Special tokens around texts of other architectures, by model_type."""
ANY_TEXT = "a"
TEXTS_AT_ONCE = 1000


def fitting_tokenizer(
    source: str, model: PreTrainedModel, *, finished: bool = False, **settings: Any
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that fits `model`: the model's input names and longest input.

    Many tokenizers were saved for another model (BERT's gives segments, which DistilBERT refuses)
    or have no maximum length; some lack more (see `fill_gaps`).

    Args:
        source: a folder or a hub name.
        model: model that reads the tokens.
        finished: whether `source` is a trained classifier, whose special tokens stay as they are.
        settings: further settings of the tokenizer.

    Raises:
        OSError, ValueError: there is no tokenizer, it would need code from the hub, or it has no
            token to pad with.
    """
    own = _load(source)
    names = [name for name in input_names(model) if name in own.model_input_names]
    longest, positions, card = (
        longest_input(own),
        most_tokens(model.config),
        Path(source) / CARD_NAME,
    )
    if positions and card.is_file() and read_card(card.parent).max_length:
        longest = positions  # an artifact's maximum length is for its own task only
    elif positions:
        longest = min(longest, positions)
    settings = {**settings, "model_input_names": names, "model_max_length": longest}
    tokenizer = _load(source, **settings, **gap_settings(model.config))
    fill_gaps(tokenizer, model.config, finished=finished)
    return tokenizer


def _load(source: str, **settings: Any) -> PreTrainedTokenizerBase:
    try:
        return load_by_transformers(source, local_files_only=Path(source).is_dir(), **settings)
    except TypeError:  # transformers opens the tokenizer file without checking that it exists
        raise ValueError("it has no tokenizer") from None


def gap_settings(config: PretrainedConfig) -> dict[str, Any]:
    """Return the settings with which to load a tokenizer for a model of this config."""
    side = "left" if config.model_type in READING_THE_LAST_TOKEN else "right"
    # a text that spells a special token must not contain one
    apart = {"split_special_tokens": True} if config.is_encoder_decoder else {}
    return {"padding_side": side, **apart}


def fill_gaps(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, *, finished: bool = False
) -> None:
    """Add missing padding and special tokens, so that a classifier can read batches of texts.

    Args:
        tokenizer: tokenizer to change in place.
        config: the model's config.
        finished: whether the tokenizer is a trained classifier's, whose special tokens around texts
            must not change.

    Raises:
        ValueError: the tokenizer has no token to pad with.
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
            # after each text, as in pre-training; it also separates the texts of a pair
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                f"$A {end}", f"$A {end} $B {end}", [(end, tokenizer.eos_token_id)]
            )
    if config.is_encoder_decoder:
        _split_spelt_end_token(tokenizer)


def lacks_frame(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer has [CLS] and [SEP] tokens but adds neither to a text."""
    ends = {tokenizer.cls_token_id, tokenizer.sep_token_id}
    return None not in ends and ends.isdisjoint(tokenizer(ANY_TEXT)["input_ids"])


def frame_texts(tokenizer: PreTrainedTokenizerFast, model_type: str) -> None:
    """Make a tokenizer add its architecture's special tokens to texts, and log a warning."""
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


def _split_spelt_end_token(tokenizer: PreTrainedTokenizerFast) -> None:
    """Split the end token where a text spells it.

    Encoder-decoders classify by the state of the last end token and refuse batches whose texts have
    different numbers of them. Unigram vocabularies have it as an ordinary token.
    """
    end = tokenizer.eos_token
    if tokenizer(end, add_special_tokens=False)["input_ids"].count(tokenizer.eos_token_id) == 0:
        return
    backend = tokenizer.backend_tokenizer
    apart = normalizers.Replace(end, f"{end[0]} {end[1:]}")
    own = backend.normalizer
    backend.normalizer = normalizers.Sequence([own, apart]) if own else apart


def read_alike(
    one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, examples: Sequence[Example]
) -> bool:
    """Return whether two tokenizers have the same vocabulary, and read some examples alike.

    With one vocabulary they may still treat case, accents or punctuation differently.
    """
    if one.get_vocab() != other.get_vocab():
        return False
    texts = [ANY_TEXT, *(text for example in examples[:TEXTS_AT_ONCE] for text in example)]
    settings = {"add_special_tokens": False, "verbose": False}
    first, second = (
        (each(ANY_TEXT, ANY_TEXT)["input_ids"], each(texts, **settings)["input_ids"])
        for each in (one, other)
    )
    return first == second


@dataclass(frozen=True)
class TokenUse:
    """Counts of tokens in texts, and the special tokens of a tokenizer."""

    counts: torch.Tensor
    """(tokens,), occurrences of each token."""
    special: tuple[int, ...]
    """Special tokens, such as [CLS] and padding, without the unknown token."""
    before: tuple[int, ...] = ()
    """Special tokens before a text."""
    after: tuple[int, ...] = ()
    """Special tokens after a text."""


def token_use(tokenizer: PreTrainedTokenizerBase, examples: Iterable[Example]) -> TokenUse:
    """Return a tokenizer's special tokens, and its token counts in examples."""
    counts = torch.zeros(len(tokenizer), dtype=torch.long)
    texts = (text for example in examples for text in example if text)
    for batch in batched(texts, TEXTS_AT_ONCE):
        rows = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        counts += torch.bincount(tokens, minlength=len(tokenizer))
    # the unknown token stands for part of a text, so its vector can be learned
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    framed: list[int] = tokenizer(ANY_TEXT)["input_ids"]
    text: list[int] = tokenizer(ANY_TEXT, add_special_tokens=False)["input_ids"]
    start = next(at for at in range(len(framed)) if framed[at : at + len(text)] == text)
    frame = tuple(framed[:start]), tuple(framed[start + len(text) :])
    return TokenUse(counts, tuple(sorted(special)), *frame)
