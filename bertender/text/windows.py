"""Texts and contexts that are longer than a model's input: windows that overlap.

A tokenizer says in its settings whether texts are read so, and how the logits of the windows
become those of the text. Windows are as few as can be and as long as each other: so each counts
alike, and none is a short end that says little.

Of a question about a context, each window has the whole question and a part of the context. A token
of the context stands for a span of its characters, which is its place; the first token of a window
([CLS]) stands for none of them. A context that fits is one window.
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
"""Of a tokenizer: a name of WINDOW_POOLINGS, where it reads long texts in windows."""
WINDOW_POOLINGS: Mapping[str, Any] = {"mean": np.mean, "max": np.max}
"""How the logits (windows, labels) of a text become one row."""
WINDOW_TOKENS = 256
"""Of a window, where no longest input is given: the time of attention grows with its square."""


def windows_of(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> str | None:
    """Return how the windows of a text are joined; None where longer texts are cut."""
    settings = getattr(tokenizer, "init_kwargs", None)
    own: str | None = settings.get(WINDOWS) if settings is not None else tokenizer.windows
    return own


def pooled(logits: npt.NDArray[np.float32], pooling: str) -> npt.NDArray[np.float32]:
    """Return the logits of a text, given those of its windows: (windows, labels) -> (labels,)."""
    return np.asarray(WINDOW_POOLINGS[pooling](logits, axis=0), dtype=np.float32)


class TokenizeTextWindows(Tokenize):
    """Encode single texts; each has one row, or one for each of its windows."""

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
"""The place of the first token: no characters, from 0 to 0."""
MOST_CHARACTERS = 2**31
CONTEXT_OVERLAP = 1 / 3
"""Of the longest input, what windows share: 128 tokens of 384, as Devlin et al. 2018 do."""


def place_of(start: IntArray, end: IntArray) -> IntArray:
    """Return the places of spans of characters, from start up to end, as one number each."""
    return np.asarray(start * MOST_CHARACTERS + end)


def span_of(place: int) -> tuple[int, int]:
    """Return the characters of a place: the first, and the one behind the last."""
    return divmod(place, MOST_CHARACTERS)


@dataclass(frozen=True)
class ContextWindows:
    """The windows of some examples, in their order."""

    encodings: list[CutEncoding]
    places: list[IntArray]
    """Of each token of a window: that of its characters, NO_ANSWER of the first, NO_WORD of all
    that are not of the context."""
    owners: list[int]
    """The number of the example of each."""
    truncated: list[bool]
    """Of each example: its question was longer than half of the model's input, and was cut."""


class TokenizeContextWindows(Tokenize):
    """Encode questions and their contexts; an example has one window or more."""

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
    """The tokens of a question and its context, and which windows they make."""

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
        # some tokens are of white space alone, or of no character
        seen = np.cumsum([0, *(not character.isspace() for character in context)])
        self.places[self.context] = np.where(seen[end] > seen[start], place_of(start, end), NO_WORD)
        self.places[0] = NO_ANSWER
        most = max(1, (max_length - len(around)) // 2)
        self.cuts_question = len(question) > most
        self.always = np.concatenate([around, question[:most]])
        self.room = max(1, max_length - len(self.always))
        """Tokens of the context in a window."""
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
        """Return a window with some tokens of the context, and the places of its tokens."""
        tokens = np.sort(np.concatenate([self.always, context]))
        cut = CutEncoding(self.ids[tokens], self.type_ids[tokens], (), overflowing=False)
        return cut, self.places[tokens]
