"""Texts on their way into a model: examples, token batches, and the tokenizer step between them.

transformers is imported by `load_tokenizer` alone, so that an endpoint and its clients do without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from bertender.core.errors import HubCodeError, ModelError
from bertender.text.example import Example, to_examples

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from bertender.text.token_arrays import TokenArrays
    from bertender.text.tokenizer_file import FileTokenizer

__all__ = [
    "NO_WORD",
    "Batch",
    "Encode",
    "Tokenize",
    "check_rows",
    "keep_text",
    "largest_token",
    "load_tokenizer",
    "longest_input",
    "tokens_beyond",
    "truncated_rows",
]

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
            from bertender.text.token_arrays import pair_arrays

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
