"""Texts on their way into a model: examples, token batches, and the tokenizer step between them.

No tokenizer's library is imported here, so that clients of an endpoint do without.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.text.tokenizer import FileTokenizer, TokenArrays, longest_input, pair_arrays

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

IntArray = npt.NDArray[np.int64]

Example = tuple[str, ...]
"""The texts of one example: one, or two for a pair; of a task that labels words, the words."""

INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))
"""Unicode categories of control and format characters (zero-width ones are of these) and spaces."""
FILLERS = frozenset(
    ("\u034f", "\u115f", "\u1160", "\u2800", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10)))
)
"""Characters of other categories that show nothing either: joiners, blanks, variation selectors."""
LONGEST_SHOWN = 80
"""Characters of a value in a message."""

EXAMPLES_PER_COUNT = 1000
NO_WORD = -1
"""Of a token that begins no word: a later token of one, a special token, padding."""


def is_blank(text: str) -> bool:
    """Return whether a text has no character that can be seen, so that there is nothing to read."""
    return all(
        character in FILLERS or unicodedata.category(character) in INVISIBLE for character in text
    )


def to_examples(values: object) -> list[Example]:
    """Return texts, and tuples or lists of texts, as examples: a text alone is an example of one.

    Raises:
        DataError: `values` is one text, or nothing that has several; or a row is no text and no
            tuple of texts, and the message names it.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(
            f'{_shown(values)} is not a list of texts. Give a list: ["a text"], or [("a text", '
            '"its second text")] for pairs.'
        )
    return [_to_example(row, value) for row, value in enumerate(values)]


def _to_example(row: int, value: object) -> Example:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, tuple | list):
        raise DataError(f"row {row} is {_shown(value)}. {_advice(value)}")
    for part in value:
        if not isinstance(part, str):
            raise DataError(f"row {row} has {_shown(part)} among its texts. {_advice(part)}")
    return tuple(value)


def _advice(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return "Decode it: value.decode()."
    return "Give a text, or a tuple of two for a pair."


def _shown(value: object) -> str:
    """Return a value and its type for a message."""
    text = repr(value)
    short = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return short if value is None else f"{short} ({type(value).__name__})"


@dataclass(frozen=True)
class Batch:
    """Examples as a model takes them: token arrays (batch, seq), and the texts they came from."""

    examples: tuple[Example, ...]
    arrays: Mapping[str, IntArray]
    words: IntArray | None = None
    """(batch, seq), where words have labels: the number of the word that a token begins, or
    NO_WORD."""
    truncated: npt.NDArray[np.bool_] | None = None
    """(batch,): the example was longer than the model's input; None where nothing is cut."""

    def __len__(self) -> int:
        return len(self.examples)


class Encode(Protocol):
    """Examples to a batch."""

    def __call__(self, examples: Sequence[Example]) -> Batch: ...


class Tokenize:
    """Encode by a tokenizer, padded to the longest of the batch and no further."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> None:
        self.tokenizer: Any = tokenizer  # of transformers wherever more is read of it than tokens
        self.max_length = min(max_length or longest_input(tokenizer), longest_input(tokenizer))

    def __call__(self, examples: Sequence[Example]) -> Batch:
        known = to_examples(examples)
        arrays = self._tokens([list(column) for column in zip(*known, strict=True)])
        return Batch(
            tuple(known),
            {name: np.asarray(array, dtype=np.int64) for name, array in arrays.items()},
            truncated=truncated_rows(arrays),
        )

    def _tokens(self, columns: Sequence[list[str]]) -> BatchEncoding | TokenArrays:
        is_fast = bool(getattr(self.tokenizer, "is_fast", False))  # a FileTokenizer does not say
        if len(columns) > 1 and is_fast and self.tokenizer.pad_token_id is not None:
            return pair_arrays(self.tokenizer, columns, self.max_length)
        settings = {"max_length": self.max_length, "padding": True, "truncation": True}
        tokens: BatchEncoding = self.tokenizer(*columns, return_tensors="np", **settings)
        return tokens

    def counts(self, examples: Sequence[Example]) -> list[int]:
        """Return how many tokens each example has where nothing is cut.

        The tokenizer must be one of transformers.
        """
        return [
            len(ids)
            for start in range(0, len(examples), EXAMPLES_PER_COUNT)
            for ids in self._uncut(examples[start : start + EXAMPLES_PER_COUNT])
        ]

    def _uncut(self, examples: Sequence[Example]) -> list[list[int]]:
        columns = [list(column) for column in zip(*examples, strict=True)]
        ids: list[list[int]] = self.tokenizer(*columns, verbose=False)["input_ids"]
        return ids


def truncated_rows(tokens: BatchEncoding | TokenArrays) -> npt.NDArray[np.bool_] | None:
    """Return which texts (batch,) were cut; None where a slow tokenizer does not report it."""
    if tokens.encodings is None:
        return None
    return np.array([bool(each.overflowing) for each in tokens.encodings])


def keep_text(examples: Sequence[Example]) -> Batch:
    """Encode for models that read the text itself (the bag of words, a served endpoint)."""
    return Batch(tuple(to_examples(examples)), {})


class TokenizeWords(Tokenize):
    """Encode sentences that are split into words; the batch has the first token of each word.

    That token predicts the word's label; its other tokens and special tokens predict nothing.
    """

    def __call__(self, examples: Sequence[Example]) -> Batch:
        sentences = _to_sentences(examples)
        tokens = encode_words(
            self.tokenizer, sentences, self.max_length, padding=True, return_tensors="np"
        )
        arrays = {name: np.asarray(array, dtype=np.int64) for name, array in tokens.items()}
        begun = [begun_words(tokens.word_ids(row)) for row in range(len(sentences))]
        words = np.array([[NO_WORD if word is None else word for word in row] for row in begun])
        return Batch(sentences, arrays, words, truncated_rows(tokens))

    def _uncut(self, examples: Sequence[Example]) -> list[list[int]]:
        sentences = [list(example) for example in examples]
        tokens = self.tokenizer(sentences, is_split_into_words=True, verbose=False)
        ids: list[list[int]] = tokens["input_ids"]
        return ids


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Example],
    max_length: int | None = None,
    **settings: Any,
) -> BatchEncoding:
    """Tokenise sentences that are split into words.

    Args:
        tokenizer: a fast one, which has the word of each token (`word_ids`).
        sentences: words.
        max_length: longer sentences are cut to so many tokens; by default, and at most, to what
            the tokenizer allows.
        settings: more of the tokenizer's own (padding, kind of tensors).
    """
    tokens: BatchEncoding = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        truncation=True,
        max_length=min(max_length or longest_input(tokenizer), longest_input(tokenizer)),
        **settings,
    )
    return tokens


def begun_words(word_ids: Sequence[int | None]) -> list[int | None]:
    """Return the word that each token begins; None for other tokens and special tokens."""
    pairs = pairwise((None, *word_ids))
    return [word if word != before else None for before, word in pairs]


def tokens_of_words(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Return the numbers of the tokens of each word, without special tokens, of any length.

    Args:
        tokenizer: a fast one, which has the word of each token.
        sentences: words.
    """
    tokens = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        add_special_tokens=False,
        verbose=False,  # no word about inputs longer than the model takes
    )
    by_sentence: list[list[list[int]]] = [[[] for _ in sentence] for sentence in sentences]
    for row, words in enumerate(by_sentence):
        for token, word in zip(tokens["input_ids"][row], tokens.word_ids(row), strict=True):
            assert word is not None  # only special tokens are of no word
            words[word].append(token)
    return by_sentence


def keep_words(examples: Sequence[Example]) -> Batch:
    """Encode for a served endpoint, which reads the words itself and predicts a label for each."""
    sentences = _to_sentences(examples)
    longest = max(map(len, sentences))
    words = [[*range(len(each)), *[NO_WORD] * (longest - len(each))] for each in sentences]
    return Batch(sentences, {}, np.array(words))


def _to_sentences(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Return sentences of words; one that came as a text is split."""
    known = to_examples(examples)
    return tuple(
        tuple(given.split()) if isinstance(given, str) else example
        for given, example in zip(examples, known, strict=True)
    )
