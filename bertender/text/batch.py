"""Texts on their way into a model: examples, token batches, and the tokenizer step between them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError, HubCodeError, ModelError

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer, TokenArrays

# --- from bertender.text.example
# An example before any tokenizer.

Example = tuple[str, ...]
"""The texts of one example: one, or two for a pair; of a task that labels words, the words."""

INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))
"""Unicode categories of control and format characters (zero-width ones are of these) and spaces."""
FILLERS = frozenset(
    ("\u034f", "\u115f", "\u1160", "\u2800", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10)))
)
"""Characters of other categories that show nothing either: joiners, blanks, variation selectors."""


def is_blank(text: str) -> bool:
    """Return whether a text has no character that can be seen, so that there is nothing to read."""
    return all(
        character in FILLERS or unicodedata.category(character) in INVISIBLE for character in text
    )


LONGEST_SHOWN = 80
"""Characters of a value in a message."""


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
    if isinstance(value, tuple | list):
        for part in value:
            if not isinstance(part, str):
                raise DataError(f"row {row} has {_shown(part)} among its texts. {_advice(part)}")
        return tuple(value)
    raise DataError(f"row {row} is {_shown(value)}. {_advice(value)}")


def _advice(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return "Decode it: value.decode()."
    return "Give a text, or a tuple of two for a pair."


def _shown(value: object) -> str:
    """Return a value and its type for a message."""
    text = repr(value)
    short = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return short if value is None else f"{short} ({type(value).__name__})"


# --- from bertender.text.batch
# Texts on their way into a model: examples, token batches, and the tokenizer step between them.
#
# transformers is imported by `load_tokenizer` alone, so that an endpoint and its clients do
# without.

IntArray = npt.NDArray[np.int64]

LONGEST_INPUT_BY_DEFAULT = 512
EXAMPLES_PER_COUNT = 1000
SHOWN_TOKENS = 5

NO_WORD = -1
"""Of a token that begins no word: a later token of one, a special token, padding."""


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
        if len(columns) > 1 and _cuts_by_tokenizers(self.tokenizer):
            from bertender.text.tokenizer import pair_arrays

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


def _cuts_by_tokenizers(tokenizer: Any) -> bool:
    """Return whether a tokenizer, of transformers or one's own, lets `tokenizers` cut texts."""
    return bool(getattr(tokenizer, "is_fast", False)) and tokenizer.pad_token_id is not None


def truncated_rows(tokens: BatchEncoding | TokenArrays) -> npt.NDArray[np.bool_] | None:
    """Return which texts (batch,) were cut; None where a slow tokenizer does not report it."""
    if tokens.encodings is None:
        return None
    return np.array([bool(each.overflowing) for each in tokens.encodings])


def keep_text(examples: Sequence[Example]) -> Batch:
    """Encode for models that read the text itself (the bag of words, a served endpoint)."""
    return Batch(tuple(to_examples(examples)), {})


def load_tokenizer(
    directory: Path | str, max_length: int | None = None, **settings: Any
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local directory; nothing is asked of a hub.

    Args:
        directory: where its files are.
        max_length: longest input in tokens, instead of the one that was saved with it.
        settings: of the tokenizer, instead of its own.

    Raises:
        ModelError: there is no tokenizer, or its files cannot be read; HubCodeError where the
            config next to it names code of the hub.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase
    from transformers.utils import logging as transformers_logging

    from bertender.core.hub_code import open_pretrained

    quiet = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        tokenizer = open_pretrained(AutoTokenizer, directory, local_files_only=True, **settings)
    except HubCodeError:
        raise
    except Exception as error:  # of a damaged tokenizer.json, tokenizers raises Exception itself
        raise ModelError(
            f"no usable tokenizer in {directory}: {error}. Copy the tokenizer's files there "
            "(tokenizer.json, tokenizer_config.json), or build the artifact again."
        ) from None
    finally:
        transformers_logging.set_verbosity(quiet)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    tokenizer.model_max_length = max_length or tokenizer.model_max_length
    return tokenizer


def longest_input(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> int:
    """Return the most tokens that the model takes; 512 for tokenizers that do not state it."""
    stated = tokenizer.model_max_length
    return int(stated) if stated < 10**6 else LONGEST_INPUT_BY_DEFAULT


def largest_token(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> int:
    """Return the largest number that a tokenizer gives a token."""
    own: Any = getattr(tokenizer, "tokenizer", tokenizer)  # of a FileTokenizer, that of tokenizers
    if hasattr(own, "get_vocab_size"):
        return max(int(own.get_vocab_size()) - 1, *map(int, own.get_added_tokens_decoder()), 0)
    return max(len(own) - 1, *map(int, own.added_tokens_decoder), 0)


def tokens_beyond(tokenizer: PreTrainedTokenizerBase | FileTokenizer, rows: int) -> str:
    """Return the tokens whose numbers are beyond a table of so many rows; empty where none are.

    They are listed in words for the user, at most SHOWN_TOKENS of them.
    """
    beyond = range(rows, largest_token(tokenizer) + 1)
    own: Any = getattr(tokenizer, "tokenizer", tokenizer)
    name = own.id_to_token if hasattr(own, "id_to_token") else own.convert_ids_to_tokens
    listed = ", ".join(f"{name(number)!r} ({number})" for number in beyond[:SHOWN_TOKENS])
    more = len(beyond) - SHOWN_TOKENS
    return f"{listed} and {more} more" if more > 0 else listed


def check_rows(
    tokenizer: PreTrainedTokenizerBase | FileTokenizer, rows: int, model: Path | str
) -> None:
    """Raise ModelError where a tokenizer has tokens beyond the rows of a model's embeddings.

    One text with such a token would fail with all others of its batch.
    """
    if lacking := tokens_beyond(tokenizer, rows):
        raise ModelError(
            f"the embeddings of {model} have {rows} rows, and its tokenizer gives numbers beyond "
            f"them: {lacking}. Take the tokenizer that the model was trained with; or fine-tune "
            "the model with this one, `bertender finetune --teacher`, which adds a row for each."
        )


# --- from bertender.text.words
# Sentences of words on their way into a model: tokens, and which word each begins.
#
# The first token of a word predicts its label; its other tokens and special tokens predict
# nothing.


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


class TokenizeWords(Tokenize):
    """Encode sentences that are split into words; the batch has the first token of each word."""

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
