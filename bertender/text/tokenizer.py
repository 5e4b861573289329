"""A saved tokenizer, run by `tokenizers` alone, and its tokens as arrays."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from bertender.core.errors import ModelError
from bertender.text.batch import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# --- from bertender.text.token_arrays
# Tokens of texts to arrays of equal lengths: cut to what a model takes, padded to the longest.

IntArray = npt.NDArray[np.int64]

SPECIAL = -1
"""Instead of the number of a text: the token is in none, but was put around them."""


@dataclass(frozen=True)
class Padding:
    """The padding of the shorter texts of a batch: its tokens, and the side."""

    side: str = "right"
    type_id: int = 0
    token_id: int = 0


@dataclass(frozen=True)
class CutEncoding:
    """The tokens of a text, or of a pair of texts, that a model takes."""

    ids: IntArray
    type_ids: IntArray
    words: Sequence[int | None]
    overflowing: bool
    """More tokens were cut off."""


def cut_encoding(encoding: Encoding, max_length: int, side: str) -> CutEncoding:
    """Return the tokens that a model takes of a text or a pair; of a pair, the longer is cut first.

    Args:
        encoding: all tokens, those included that are put around texts and are never cut.
        max_length: most of them.
        side: where a text is cut, left or right.
    """
    ids, type_ids = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
    if len(ids) <= max_length:
        return CutEncoding(ids, type_ids, encoding.word_ids, overflowing=False)
    texts = np.array([SPECIAL if text is None else text for text in encoding.sequence_ids])
    places = _remaining(texts, max_length, side)
    words = encoding.word_ids
    return CutEncoding(ids[places], type_ids[places], [words[place] for place in places], True)


class TokenArrays(dict[str, IntArray]):
    """Token arrays (batch, seq) by name, and the encodings that they are made of."""

    def __init__(self, encodings: Sequence[CutEncoding], padding: Padding) -> None:
        self.encodings = encodings
        self.padding = padding
        self.lengths = [len(each.ids) for each in encodings]
        super().__init__(
            input_ids=self._padded([each.ids for each in encodings], padding.token_id),
            token_type_ids=self._padded([each.type_ids for each in encodings], padding.type_id),
            attention_mask=self._padded([1] * len(encodings), 0),
        )

    def word_ids(self, row: int) -> list[int | None]:
        """Return the word of each token of a row; None for special tokens and padding."""
        words = list(self.encodings[row].words)
        missing: list[int | None] = [None] * (max(self.lengths) - len(words))
        return missing + words if self.padding.side == "left" else words + missing

    def _padded(self, rows: Sequence[IntArray | int], fill: int) -> IntArray:
        longest = max(self.lengths)
        array = np.full((len(rows), longest), fill, np.int64)
        for row, (values, length) in enumerate(zip(rows, self.lengths, strict=True)):
            start = longest - length if self.padding.side == "left" else 0
            array[row, start : start + length] = values
        return array


def pair_arrays(
    tokenizer: PreTrainedTokenizerBase, columns: Sequence[list[str]], max_length: int
) -> TokenArrays:
    """Return the arrays (batch, seq) of pairs of texts, which are cut here.

    Where `tokenizers` cuts a pair, it also returns every pair of the parts that are cut off, which
    takes gigabytes for two texts of 32 KB.

    Args:
        tokenizer: of transformers, a fast one with a padding token.
        columns: the first texts, and the second ones.
        max_length: more tokens are cut.
    """
    # a warning of what is longer than the model's input would be wrong
    tokens = tokenizer(*columns, truncation=False, padding=False, verbose=False)
    assert tokens.encodings is not None
    cut = [cut_encoding(each, max_length, tokenizer.truncation_side) for each in tokens.encodings]
    padding = Padding(tokenizer.padding_side, tokenizer.pad_token_type_id, tokenizer.pad_token_id)
    arrays = TokenArrays(cut, padding)
    for name in {*arrays} - {*tokens}:  # those that the model does not read
        del arrays[name]
    return arrays


def _remaining(texts: IntArray, max_length: int, side: str) -> IntArray:
    """Return the places of the tokens that remain, given the text that each token is in."""
    room = max(0, max_length - int((texts == SPECIAL).sum()))
    own = [np.flatnonzero(texts == number) for number in (0, 1)]
    first, second = _longest_first(len(own[0]), len(own[1]), room)
    cut = SIDES[side]
    parts = (np.flatnonzero(texts == SPECIAL), cut(own[0], first), cut(own[1], second))
    return np.sort(np.concatenate(parts))


SIDES: dict[str, Callable[[IntArray, int], IntArray]] = {
    "left": lambda places, count: places[len(places) - count :],
    "right": lambda places, count: places[:count],
}


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens remain of each text of a pair, in `tokenizers`' way.

    The longer one is cut to the length of the other, then both alike; of an odd number, the text
    that was longer has one more, the second where they were equal.
    """
    shorter, longer = sorted((first, second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (longer, shorter) if first > second else (shorter, longer)


# --- from bertender.text.tokenizer_file
# A saved tokenizer, run by `tokenizers` alone: what transformers does with it, without its
# import.
#
# An endpoint starts sooner and takes less memory so. transformers runs a fast tokenizer by the
# same
# library, and saves all of its state in `tokenizer.json`, except how it truncates and pads: that
# is
# in `tokenizer_config.json`, and in the tokenizer's class where that file is silent (see
# CLASSES).

logger = logging.getLogger(__name__)

TOKENIZER_NAME = "tokenizer.json"
SETTINGS_NAME = "tokenizer_config.json"

NO_LIMIT = int(1e30)
"""A longest input that no model has: transformers writes it where it knows none."""

ALWAYS: Mapping[str, Any] = {"padding": True, "truncation": True, "return_tensors": "np"}


CLASSES: Mapping[str, Padding] = {
    "AlbertTokenizer": Padding(),
    "BertTokenizer": Padding(),
    "CamembertTokenizer": Padding(),
    "DebertaV2Tokenizer": Padding(),
    "DistilBertTokenizer": Padding(),
    "ElectraTokenizer": Padding(),
    "GPT2Tokenizer": Padding(),
    "MPNetTokenizer": Padding(),
    "MobileBertTokenizer": Padding(),
    "PreTrainedTokenizer": Padding(),
    "RobertaTokenizer": Padding(),
    "T5Tokenizer": Padding(),
    "XLMRobertaTokenizer": Padding(),
    "XLNetTokenizer": Padding("left", type_id=3),
}
"""Classes of transformers, without "Fast" at the end, that give the same tokens when they are run
from their file. Others may have code of their own around it."""


def open_tokenizer(
    directory: Path, max_length: int | None = None
) -> FileTokenizer | PreTrainedTokenizerBase:
    """Open a saved tokenizer: from its file, or by transformers if only that gives its tokens.

    Args:
        directory: an artifact's.
        max_length: longest input in tokens, instead of the one that was saved with the tokenizer.

    Raises:
        ModelError: no tokenizer, or unreadable files; HubCodeError where transformers is needed
            and the config refers to code of the hub.
    """
    name = _class_name(directory)
    if name in CLASSES and (directory / TOKENIZER_NAME).is_file():
        return FileTokenizer(directory, max_length)
    logger.warning(
        "transformers runs the tokenizer of %s (%s), which takes memory and time at the start. "
        f"Without it, a {TOKENIZER_NAME} of these classes is run: {', '.join(CLASSES)}",
        directory,
        name,
    )
    return load_tokenizer(directory, max_length)


class FileTokenizer:
    """A tokenizer that is called as one of transformers is, for padded and truncated arrays.

    It cuts and pads by itself: where `tokenizers` cuts a pair, it also returns every pair of the
    parts that are cut off, which takes gigabytes for two texts of 32 KB.

    Args:
        directory: has `tokenizer.json`, and `tokenizer_config.json` with a class of CLASSES.
        max_length: longest input in tokens, instead of the one in `tokenizer_config.json`.

    Raises:
        ModelError: a missing or unreadable file, or no padding token.
    """

    def __init__(self, directory: Path, max_length: int | None = None) -> None:
        try:
            self.tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_NAME))
            settings = {**_saved_sides(self.tokenizer), **_settings(directory)}
            stated = max_length or settings.get("model_max_length")
            self.model_max_length = int(stated or NO_LIMIT)
            self.truncation_side = settings.get("truncation_side", "right")
            self.tokenizer.encode_special_tokens = settings.get("split_special_tokens", False)
            self.padding = _padding(self.tokenizer, settings)
        except Exception as error:  # tokenizers raises Exception itself
            raise ModelError(
                f"no usable tokenizer in {directory}: {error}. Copy the tokenizer's files there "
                f"({TOKENIZER_NAME}, {SETTINGS_NAME}), or build the artifact again."
            ) from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def __call__(
        self,
        *columns: Sequence[Any],
        max_length: int,
        is_split_into_words: bool = False,
        **settings: Any,
    ) -> TokenArrays:
        """Return arrays (batch, seq) of texts, of pairs (two columns), or of lists of words.

        Args:
            columns: the first texts, and the second ones of pairs.
            max_length: more tokens are cut.
            is_split_into_words: a text is a list of words.
            settings: those of ALWAYS.

        Raises:
            ModelError: other settings, which only transformers has.
        """
        if settings != ALWAYS:
            raise ModelError(
                f"the tokenizer is called with {settings}, and an endpoint has {dict(ALWAYS)} "
                "alone. Encode the texts of the problem type by `Tokenize`."
            )
        inputs = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        if is_split_into_words:
            encoded = self.tokenizer.encode_batch(inputs, is_pretokenized=True)
        elif self.tokenizer.post_processor is None:  # the fast one would lose the pair's type ids
            encoded = self.tokenizer.encode_batch(inputs)
        else:
            encoded = self.tokenizer.encode_batch_fast(inputs)  # without the word of each token
        cut = [cut_encoding(each, max_length, self.truncation_side) for each in encoded]
        return TokenArrays(cut, self.padding)


def _settings(directory: Path) -> dict[str, Any]:
    settings = json.loads((directory / SETTINGS_NAME).read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise ValueError(f"{SETTINGS_NAME} holds no object")
    return settings


def _padding(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> Padding:
    saved = settings.get("pad_token")
    token = saved["content"] if isinstance(saved, dict) else saved
    number = tokenizer.token_to_id(token) if token else None
    if number is None:
        raise ValueError(
            f"it has no padding token (pad_token={saved!r}), so that texts of different lengths "
            "cannot be in one batch"
        )
    by_default = CLASSES[_short(settings["tokenizer_class"])]
    side = settings.get("padding_side", by_default.side)
    return replace(by_default, side=side, token_id=number)


def _saved_sides(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings of a tokenizer.json that stand in for those of the config."""
    saved: dict[str, Any] = {}
    if padding := tokenizer.padding:
        saved |= {"padding_side": padding["direction"], "pad_token": padding["pad_token"]}
    if truncation := tokenizer.truncation:
        saved |= {"truncation_side": truncation["direction"]}
    return saved


def stated_longest_input(directory: Path) -> int | None:
    """Return the most tokens of an input that a saved tokenizer states; None where it does not."""
    try:
        stated = int(_settings(directory).get("model_max_length") or NO_LIMIT)
    except (OSError, ValueError):
        return None
    return stated if stated < NO_LIMIT else None


def _class_name(directory: Path) -> str | None:
    """Return the class that a tokenizer was saved by; None where its settings do not tell."""
    try:
        name = _settings(directory).get("tokenizer_class")
    except (OSError, ValueError):
        return None
    return _short(name) if isinstance(name, str) else None


def _short(name: str) -> str:
    return name.removesuffix("Fast")
