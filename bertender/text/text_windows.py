"""Texts that are longer than a model's input: windows that overlap, whose logits are joined.

A tokenizer says in its settings whether texts are read so, and how the logits of the windows
become those of the text. Windows are as few as can be and as long as each other: so each counts
alike, and none is a short end that says little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.text.batch import Batch, Example, Tokenize, to_examples
from bertender.text.tokenizer import CutEncoding, FileTokenizer, TokenArrays, padding_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WINDOWS = "windows"
"""Of a tokenizer: a name of POOLINGS, where it reads long texts in windows."""
POOLINGS: Mapping[str, Any] = {"mean": np.mean, "max": np.max}
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
    return np.asarray(POOLINGS[pooling](logits, axis=0), dtype=np.float32)


class TokenizeLong(Tokenize):
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
