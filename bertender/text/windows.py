"""Overlapping windows for texts and contexts that are longer than a model's input.

A tokenizer's settings say whether texts are read in windows, and how the logits of the windows are
pooled. Windows are as few as possible and equally long, so that all count equally and none is a
short remainder.

For a question about a context, each window has the whole question and a part of the context. A
token of the context stands for a span of characters, its place; the first token of a window ([CLS])
stands for no answer. A context that fits is one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.text.batch import NO_WORD, Batch, Example, Tokenize, to_examples
from bertender.text.tokenizer import CutEncoding, FileTokenizer, TokenArrays, padding_of

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase


WINDOWS = "windows"
"""Setting of a tokenizer: a name in WINDOW_POOLINGS, if long texts are read in windows."""
WINDOW_POOLINGS: Mapping[str, Any] = {"mean": np.mean, "max": np.max}
"""Poolings of the logits (windows, labels) of a text to one row."""
WINDOW_TOKENS = 256
"""Default length of a window in tokens: the time of attention grows with its square."""


def windows_of(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> str | None:
    """Return the pooling of a text's windows; None where longer texts are cut."""
    settings = getattr(tokenizer, "init_kwargs", None)
    own: str | None = settings.get(WINDOWS) if settings is not None else tokenizer.windows
    return own


def pooled(logits: npt.NDArray[np.float32], pooling: str) -> npt.NDArray[np.float32]:
    """Pool the logits of a text's windows: (windows, labels) -> (labels,)."""
    return np.asarray(WINDOW_POOLINGS[pooling](logits, axis=0), dtype=np.float32)


class TokenizeTextWindows(Tokenize):
    """Encode single texts, with a row for each window of a text."""

    cuts = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        known = to_examples(examples)
        windows = self.windows(known)
        arrays = TokenArrays([each for own in windows for each in own], padding_of(self.tokenizer))
        return Batch(
            tuple(known),
            {name: arrays[name] for name in arrays if self.reads(name)},
            truncated=np.zeros(len(known), dtype=np.bool_),
            owners=np.repeat(range(len(known)), [*map(len, windows)]),
        )

    def windows(self, examples: Sequence[Example]) -> list[list[CutEncoding]]:
        """Return the windows of each text."""
        return [CutEncoding.windows(each, self.max_length) for each in self.encodings(examples)]


IntArray = npt.NDArray[np.int64]

NO_ANSWER = 0
"""Place of the first token: the empty span from 0 to 0."""
MOST_CHARACTERS = 2**31
CONTEXT_OVERLAP = 1 / 3
"""Overlap of windows as a share of the longest input: 128 of 384 tokens in Devlin et al. 2018."""


def place_of(start: IntArray, end: IntArray) -> IntArray:
    """Return the places of spans of characters, from start to end (exclusive), a number each."""
    return np.asarray(start * MOST_CHARACTERS + end)


def span_of(place: int) -> tuple[int, int]:
    """Return the span of characters of a place: start, and end (exclusive)."""
    return divmod(place, MOST_CHARACTERS)


@dataclass(frozen=True)
class ContextWindows:
    """The windows of several examples, in order."""

    encodings: list[CutEncoding]
    places: list[IntArray]
    """Place of each token of a window: its span of characters, NO_ANSWER for the first token,
    NO_WORD for other tokens outside the context."""
    owners: list[int]
    """Number of the example of each window."""
    truncated: list[bool]
    """Whether the question of each example was cut, to half of the model's input."""


class TokenizeContextWindows(Tokenize):
    """Encode questions with their contexts, with a row for each window of the context."""

    cuts = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        known = to_examples(examples)
        windows = self.windows(known)
        padding = padding_of(self.tokenizer)
        arrays = TokenArrays(windows.encodings, padding)
        longest = max(arrays.lengths)
        places = np.full((len(windows.places), longest), NO_WORD, dtype=np.int64)
        for row, own in enumerate(windows.places):
            start = longest - len(own) if padding.side == "left" else 0
            places[row, start : start + len(own)] = own
        return Batch(
            tuple(known),
            {name: arrays[name] for name in arrays if self.reads(name)},
            words=places,
            truncated=np.array(windows.truncated),
            owners=np.array(windows.owners),
        )

    def windows(self, examples: Sequence[Example]) -> ContextWindows:
        """Return the windows of some examples.

        Raises:
            ModelError: the tokenizer does not map tokens to characters, or has no token before a
                text.
        """
        found = ContextWindows([], [], [], [])
        pairs = zip(examples, self.encodings(examples), strict=True)
        for number, ((_, context), whole) in enumerate(pairs):
            parts = _Parts(whole, context, self.max_length)
            found.truncated.append(parts.cuts_question)
            for tokens in parts.windows():
                encoding, places = parts.of(tokens)
                found.encodings.append(encoding)
                found.places.append(places)
                found.owners.append(number)
        return found

    def counts(self, examples: Sequence[Example]) -> list[int]:
        return [len(whole.ids) for whole in self.encodings(examples)]


class _Parts:
    """The tokens of a question and its context, and their windows."""

    def __init__(self, whole: Encoding, context: str, max_length: int) -> None:
        self.ids = np.array(whole.ids, dtype=np.int64)
        self.type_ids = np.array(whole.type_ids, dtype=np.int64)
        texts = np.array([-1 if text is None else text for text in whole.sequence_ids])
        if texts[0] != -1:
            raise ModelError(
                "the tokenizer puts no token before a text, such as [CLS], which stands for 'no "
                "answer'. Give a model of another architecture, such as bert or roberta."
            )
        around, question, self.context = (np.flatnonzero(texts == number) for number in (-1, 0, 1))
        self.places = np.full(len(self.ids), NO_WORD, dtype=np.int64)
        start, end = np.array(whole.offsets, dtype=np.int64)[self.context].T
        # some tokens have only white space, or no characters
        seen = np.cumsum([0, *(not character.isspace() for character in context)])
        self.places[self.context] = np.where(seen[end] > seen[start], place_of(start, end), NO_WORD)
        self.places[0] = NO_ANSWER
        most = max(1, (max_length - len(around)) // 2)
        self.cuts_question = len(question) > most
        self.always = np.concatenate([around, question[:most]])
        self.room = max(1, max_length - len(self.always))
        """Number of tokens of the context in a window."""
        self.step = self.room - min(int(CONTEXT_OVERLAP * max_length), self.room // 2)

    def windows(self) -> Iterator[IntArray]:
        """Yield the tokens of the context in each window."""
        start = 0
        while True:
            yield self.context[start : start + self.room]
            if start + self.room >= len(self.context):
                return
            start += self.step

    def of(self, context: IntArray) -> tuple[CutEncoding, IntArray]:
        """Return the window with these tokens of the context, and the places of its tokens."""
        tokens = np.sort(np.concatenate([self.always, context]))
        cut = CutEncoding(self.ids[tokens], self.type_ids[tokens], (), overflowing=False)
        return cut, self.places[tokens]
