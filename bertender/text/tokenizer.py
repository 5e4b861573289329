"""Tokenizers: loaded by transformers, or run from their file by the `tokenizers` library alone.

An endpoint starts faster and takes less memory without transformers, whose fast tokenizers use the
same library. `tokenizer.json` has all of a tokenizer's state except truncation and padding, which
are in `tokenizer_config.json`, or by default in the tokenizer's class (see CLASSES).

Pairs of texts are cut here: where `tokenizers` cuts a pair, it also returns all pairs of the parts
that are cut off, which takes gigabytes for two texts of 32 KB.

A sentence is tokenised alike as a text or as a list of words, since words are split into parts: a
punctuation mark or symbol, or a run of other characters. "Paris, France." and the words "Paris" ","
"France" "." have the same parts. A tagger is trained on all parts: the first has the label of its
word, and later ones continue it. The tokenizer's settings say whether words are split into parts,
and which label continues which. Tokenizers of finished models, and of artifacts of earlier
versions, do not have these settings: their words are not split.
"""

from __future__ import annotations

import json
import logging
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import HubCodeError, ModelError

if TYPE_CHECKING:  # a client has neither
    from tokenizers import Encoding
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int64]

TOKENIZER_NAME = "tokenizer.json"
SETTINGS_NAME = "tokenizer_config.json"

LONGEST_INPUT_BY_DEFAULT = 512
NO_LIMIT = int(1e30)
"""Largest plausible longest input; transformers writes a huge one where it knows none."""
SHOWN_TOKENS = 5

ALWAYS: Mapping[str, Any] = {"padding": True, "truncation": True, "return_tensors": "np"}
"""Settings of every call of a `FileTokenizer`."""


def load_tokenizer(
    directory: Path | str, max_length: int | None = None, **settings: Any
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local directory with transformers, without contacting a hub.

    Args:
        directory: directory of the files.
        max_length: longest input in tokens, in place of the saved one.
        settings: settings in place of the tokenizer's own.

    Raises:
        ModelError: there is no tokenizer, or its files cannot be read; HubCodeError where the
            config next to it refers to code on the hub.
    """
    from transformers.utils import logging as transformers_logging

    quiet = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        tokenizer = load_by_transformers(directory, local_files_only=True, **settings)
    except HubCodeError:
        raise
    except Exception as error:  # of a damaged tokenizer.json, tokenizers raises Exception itself
        raise ModelError(
            f"no usable tokenizer in {directory}: {error}. Copy the tokenizer's files there "
            "(tokenizer.json, tokenizer_config.json), or build the artifact again."
        ) from None
    finally:
        transformers_logging.set_verbosity(quiet)
    tokenizer.model_max_length = max_length or tokenizer.model_max_length
    return tokenizer


def load_by_transformers(source: Path | str, **settings: Any) -> PreTrainedTokenizerBase:
    """Open the tokenizer of a folder or a hub name with transformers.

    Raises:
        HubCodeError: the config next to it refers to code on the hub.
        ValueError: the tokenizer has only special tokens, as transformers 5 builds it where files
            are missing (older versions raise OSError).
    """
    import transformers
    from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from bertender.core.hub import open_pretrained

    before_5 = not hasattr(transformers, "TokenizersBackend")
    kind: Any = AutoTokenizer
    if before_5 and _is_of_backend(source):
        kind = PreTrainedTokenizerFast  # its name before transformers 5
    tokenizer = open_pretrained(kind, source, **settings)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    if len(tokenizer) <= len({*tokenizer.all_special_ids}):
        raise ValueError("there are no files of a tokenizer, which would know no word")
    if not before_5:
        _restore_parts(tokenizer, str(source), settings.get("revision"))
    return tokenizer


def _restore_parts(tokenizer: PreTrainedTokenizerBase, source: str, revision: str | None) -> None:
    """Restore the parts of a tokenizer that transformers 5 leaves out of its files and class."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        _load_parts(backend, source, revision)
    name = type(tokenizer).__name__
    if name in CLASSES:
        tokenizer._pad_token_type_id = CLASSES[name].type_id
    if name in WITH_SEGMENTS and "model_input_names" not in tokenizer.init_kwargs:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a tokenizer so that plain transformers loads it with the same tokens."""
    from transformers import AutoTokenizer

    from bertender.core.hub import open_pretrained

    tokenizer.save_pretrained(directory)
    if not (backend := getattr(tokenizer, "backend_tokenizer", None)):
        return
    read = open_pretrained(AutoTokenizer, directory, local_files_only=True).backend_tokenizer
    # of a model, its text has the settings and the first words
    changed = any(
        str(getattr(read, part)) != str(getattr(backend, part)) for part in (*PARTS, "model")
    )
    # transformers before 5 does not know the name of the generic class of 5
    if changed or _settings(directory).get("tokenizer_class") == "TokenizersBackend":
        settings = {**_settings(directory), "tokenizer_class": "PreTrainedTokenizerFast"}
        (directory / SETTINGS_NAME).write_text(json.dumps(settings, indent=2), encoding="utf-8")


WITH_SEGMENTS = frozenset({"AlbertTokenizer", "TokenizersBackend", "XLNetTokenizer"})
"""Classes with token types for pairs. transformers 5 leaves the types out, so that a model would
read the second text as part of the first."""
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
"""Parts of a tokenizer in the `tokenizers` library, besides its model."""
OF_SETTINGS: Mapping[str, Sequence[str]] = {
    "BertNormalizer": ("lowercase", "strip_accents", "handle_chinese_chars"),
    "ByteLevel": ("add_prefix_space",),
}
"""Settings of `tokenizer_config.json` that override `tokenizer.json`, by type of part."""


def _load_parts(backend: RustTokenizer, source: str, revision: str | None) -> None:
    """Set the model and the parts of a tokenizer from its `tokenizer.json`.

    transformers 5 only reads the vocabulary there and builds most parts from the tokenizer's class,
    so that texts may get other tokens than in the model's training.
    """
    from tokenizers import Tokenizer
    from transformers.utils.hub import cached_file

    file = cached_file(
        source,
        TOKENIZER_NAME,
        revision=revision,
        local_files_only=True,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if not file:
        return
    saved = Tokenizer.from_file(file)
    if backend.get_vocab_size(False) == saved.get_vocab_size(False):
        backend.model = saved.model
    for part in PARTS:
        own, wanted = getattr(backend, part), getattr(saved, part)
        if str(own) == str(wanted):
            continue
        if type(own) is type(wanted) and part in PARTS[:2]:
            for setting in OF_SETTINGS.get(type(own).__name__, ()):
                setattr(wanted, setting, getattr(own, setting))
        setattr(backend, part, wanted)


def longest_input(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> int:
    """Return the longest input in tokens; 512 for tokenizers that do not state it."""
    stated = int(tokenizer.model_max_length)
    return stated if states_longest_input(tokenizer) else LONGEST_INPUT_BY_DEFAULT


def states_longest_input(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> bool:
    """Return whether a tokenizer states its longest input: some have a number beyond any."""
    return int(tokenizer.model_max_length) < 10**6


def stated_longest_input(directory: Path) -> int | None:
    """Return the longest input that a saved tokenizer states, in tokens; None where it does not."""
    try:
        stated = int(_settings(directory).get("model_max_length") or NO_LIMIT)
    except (OSError, ValueError):
        return None
    return stated if stated < NO_LIMIT else None


def largest_token(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> int:
    """Return the largest token id of a tokenizer."""
    own: Any = getattr(tokenizer, "tokenizer", tokenizer)  # a FileTokenizer wraps one
    if hasattr(own, "get_vocab_size"):
        return max(int(own.get_vocab_size()) - 1, *map(int, own.get_added_tokens_decoder()), 0)
    return max(len(own) - 1, *map(int, own.added_tokens_decoder), 0)


def tokens_beyond(tokenizer: PreTrainedTokenizerBase | FileTokenizer, rows: int) -> str:
    """Return the tokens with ids beyond a table of `rows` rows, in words; empty if there are none.

    At most SHOWN_TOKENS are listed.
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

    A text with such a token would fail, and with it all texts of its batch.
    """
    if lacking := tokens_beyond(tokenizer, rows):
        raise ModelError(
            f"the embeddings of {model} have {rows} rows, and its tokenizer gives numbers beyond "
            f"them: {lacking}. Take the tokenizer that the model was trained with; or fine-tune "
            "the model with this one, `bertender finetune --teacher`, which adds a row for each."
        )


@dataclass(frozen=True)
class Padding:
    """Padding of the shorter texts of a batch: its tokens and the side."""

    token_id: int = 0
    type_id: int = 0
    side: str = "right"
    """"left" where a model predicts at the last token (XLNet)."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Values for token columns besides `input_ids` and its companions."""

    def with_others(self, **others: int) -> Padding:
        """Return the padding for more token columns, given their values."""
        return replace(self, others={**self.others, **others})

    def value(self, column: str) -> int | None:
        """Return the value for a token column; None for a column with one value per example."""
        own = {"input_ids": self.token_id, "attention_mask": 0, "token_type_ids": self.type_id}
        return {**own, **self.others}.get(column)


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
    "Qwen2Tokenizer": Padding(),
    "RobertaTokenizer": Padding(),
    "T5Tokenizer": Padding(),
    "TokenizersBackend": Padding(),
    "XLMRobertaTokenizer": Padding(),
    "XLNetTokenizer": Padding(type_id=3, side="left"),
}
"""Classes of transformers, without the suffix "Fast", whose `tokenizer.json` alone gives the same
tokens. Other classes may add code of their own."""


def open_tokenizer(
    directory: Path, max_length: int | None = None
) -> FileTokenizer | PreTrainedTokenizerBase:
    """Open a saved tokenizer: from its file, or with transformers where its class needs it.

    Args:
        directory: directory of an artifact.
        max_length: longest input in tokens, in place of the saved one.

    Raises:
        ModelError: no tokenizer, or unreadable files; HubCodeError where transformers is needed
            and the config refers to code on the hub.
    """
    try:
        name = _settings(directory).get("tokenizer_class")
    except (OSError, ValueError):
        name = None
    name = name.removesuffix("Fast") if isinstance(name, str) else None
    if name in CLASSES and (directory / TOKENIZER_NAME).is_file():
        return FileTokenizer(directory, max_length)
    logger.warning(
        "transformers runs the tokenizer of %s (%s), which takes memory and time at the start. "
        f"Without it, a {TOKENIZER_NAME} of these classes is run: {', '.join(CLASSES)}",
        directory,
        name,
    )
    return load_tokenizer(directory, max_length)


Cut = Callable[[int, int, int], tuple[int, int]]
"""(tokens of the first text, of the second, room for both) -> tokens that remain of each."""


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens remain of each text of a pair, as in the `tokenizers` library.

    The longer text is cut to the length of the other, then both equally. An odd token goes to the
    text that was longer, or to the second if they were equal.
    """
    shorter, longer = sorted((first, second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (longer, shorter) if first > second else (shorter, longer)


def only_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens remain of each text if the second is kept, as far as it fits."""
    second = min(second, room)
    return min(first, room - second), second


class FileTokenizer:
    """A tokenizer run from its file, called like a transformers tokenizer, for padded arrays.

    Args:
        directory: directory of `tokenizer.json`, and of `tokenizer_config.json` with a class of
            CLASSES.
        max_length: longest input in tokens, in place of the one in `tokenizer_config.json`.

    Raises:
        ModelError: a missing or unreadable file, or no padding token.
    """

    def __init__(self, directory: Path, max_length: int | None = None) -> None:
        from tokenizers import Tokenizer

        try:
            self.tokenizer: RustTokenizer = Tokenizer.from_file(str(directory / TOKENIZER_NAME))
            settings = _settings(directory)
            # tokenizer.json has defaults for settings that the config lacks
            if padding := self.tokenizer.padding:
                saved = {"padding_side": padding["direction"], "pad_token": padding["pad_token"]}
                settings = {**saved, **settings}
            if truncation := self.tokenizer.truncation:
                settings = {"truncation_side": truncation["direction"], **settings}
            stated = max_length or settings.get("model_max_length")
            self.model_max_length = int(stated or NO_LIMIT)
            self.truncation_side = settings.get("truncation_side", "right")
            self.continued_labels = settings.get("continued_labels")
            self.windows = settings.get("windows")
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
        cut: Cut = longest_first,
        **settings: Any,
    ) -> TokenArrays:
        """Return arrays (batch, seq) of texts, of pairs (two columns), or of lists of words.

        Args:
            columns: the first texts, and the second texts of pairs.
            max_length: most tokens; longer texts are cut.
            is_split_into_words: whether a text is a list of words.
            cut: rule for cutting a pair.
            settings: must be ALWAYS.

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
        elif self.tokenizer.post_processor is None:  # encode_batch_fast loses the type ids of pairs
            encoded = self.tokenizer.encode_batch(inputs)
        else:
            encoded = self.tokenizer.encode_batch_fast(inputs)  # does not track words
        side = self.truncation_side
        remaining = [CutEncoding.of(each, max_length, side, cut) for each in encoded]
        return TokenArrays(remaining, self.padding)


def _is_of_backend(source: Path | str) -> bool:
    try:
        return _settings(Path(source)).get("tokenizer_class") == "TokenizersBackend"
    except (OSError, ValueError):
        return False


def _settings(directory: Path) -> dict[str, Any]:
    settings = json.loads((directory / SETTINGS_NAME).read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise ValueError(f"{SETTINGS_NAME} holds no object")
    return settings


def _padding(tokenizer: RustTokenizer, settings: Mapping[str, Any]) -> Padding:
    saved = settings.get("pad_token")
    token = saved["content"] if isinstance(saved, dict) else saved
    number = tokenizer.token_to_id(token) if token else None
    if number is None:
        raise ValueError(
            f"it has no padding token (pad_token={saved!r}), so that texts of different lengths "
            "cannot be in one batch"
        )
    by_default = CLASSES[settings["tokenizer_class"].removesuffix("Fast")]
    side = settings.get("padding_side", by_default.side)
    return replace(by_default, side=side, token_id=number)


TEXT_OVERLAP = 1 / 8
"""Least share of a window's tokens that the next window repeats."""


@dataclass(frozen=True)
class CutEncoding:
    """The tokens of a text or pair that fit a model's input."""

    ids: IntArray
    type_ids: IntArray
    words: Sequence[int | None]
    overflowing: bool
    """Whether tokens were cut off."""

    @classmethod
    def of(
        cls, encoding: Encoding, max_length: int, side: str, cut: Cut = longest_first
    ) -> CutEncoding:
        """Return the tokens that remain of a text or a pair.

        Args:
            encoding: all tokens, including special tokens, which are never cut.
            max_length: most tokens.
            side: side on which a text is cut, left or right.
            cut: rule for cutting a pair.
        """
        ids, type_ids = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
        words = encoding.word_ids
        if len(ids) <= max_length:
            return cls(ids, type_ids, words, overflowing=False)
        texts = [-1 if text is None else text for text in encoding.sequence_ids]
        around, *own = (np.flatnonzero(np.array(texts) == number) for number in (-1, 0, 1))
        counts = cut(len(own[0]), len(own[1]), max(0, max_length - len(around)))
        remaining = [
            places[len(places) - count :] if side == "left" else places[:count]
            for places, count in zip(own, counts, strict=True)
        ]
        places = np.sort(np.concatenate([around, *remaining]))
        return cls(ids[places], type_ids[places], [words[place] for place in places], True)

    @classmethod
    def windows(cls, encoding: Encoding, max_length: int) -> list[CutEncoding]:
        """Return the windows of a text: as few as possible, of equal lengths, in equal steps.

        Args:
            encoding: all tokens of the text, and the special tokens of each window.
            max_length: most tokens of a window. The next window repeats at least TEXT_OVERLAP of
                them.
        """
        ids, type_ids = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
        if len(ids) <= max_length:
            return [cls(ids, type_ids, (), overflowing=False)]
        texts = np.array([-1 if text is None else text for text in encoding.sequence_ids])
        around, own = np.flatnonzero(texts < 0), np.flatnonzero(texts == 0)
        size = max(1, max_length - len(around))
        step = max(1, size - math.ceil(TEXT_OVERLAP * size))
        starts = np.linspace(0, len(own) - size, 1 + math.ceil((len(own) - size) / step))
        windows = [
            np.sort(np.r_[around, own[start : start + size]]) for start in starts.astype(int)
        ]
        return [cls(ids[each], type_ids[each], (), overflowing=False) for each in windows]


class TokenArrays(dict[str, IntArray]):
    """Token arrays (batch, seq) by name, with their encodings."""

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


def padding_of(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Padding:
    """Return the padding of a tokenizer."""
    if isinstance(tokenizer, FileTokenizer):
        return tokenizer.padding
    token_id = tokenizer.pad_token_id or 0  # without a padding token, batches have one text
    return Padding(token_id, tokenizer.pad_token_type_id, tokenizer.padding_side)


def pair_arrays(
    tokenizer: PreTrainedTokenizerBase,
    columns: Sequence[list[str]],
    max_length: int,
    cut: Cut = longest_first,
) -> TokenArrays:
    """Return the arrays (batch, seq) of pairs of texts, cut by `cut`.

    Args:
        tokenizer: a fast transformers tokenizer with a padding token.
        columns: the first texts, and the second texts.
        max_length: most tokens; longer pairs are cut.
        cut: rule for cutting a pair.
    """
    # a warning about too long inputs would be wrong, since they are cut
    tokens = tokenizer(*columns, truncation=False, padding=False, verbose=False)
    assert tokens.encodings is not None
    side = tokenizer.truncation_side
    remaining = [CutEncoding.of(each, max_length, side, cut) for each in tokens.encodings]
    arrays = TokenArrays(remaining, padding_of(tokenizer))
    for name in {*arrays} - {*tokens}:  # columns that the model does not read
        del arrays[name]
    return arrays


CONTINUED_LABELS = "continued_labels"
"""Setting of a tokenizer: for each label, the number of the label of later parts."""

APART = ("P", "S")
"""First letters of the Unicode categories of punctuation marks and symbols."""
ATTACHED = ("M", "Cf")
"""First letters of the categories of marks and format characters, such as accents and joiners."""


def continued_labels(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Sequence[int] | None:
    """Return which label continues each label; None where words are not split into parts."""
    settings = getattr(tokenizer, "init_kwargs", None)
    own = settings.get(CONTINUED_LABELS) if settings is not None else tokenizer.continued_labels
    return own or None


def part_starts(word: str) -> list[int]:
    """Return the offsets of the parts of a word, in characters, beginning with 0.

    Marks and format characters belong to the character before them.
    """
    if word.isalnum():
        return [0]
    return [*_starts(word)]


def _starts(word: str) -> Iterator[int]:
    after_apart = True
    for place, character in enumerate(word):
        category = unicodedata.category(character)
        if category.startswith(ATTACHED) and place:
            continue
        is_apart = category.startswith(APART)
        if is_apart or after_apart:
            yield place
        after_apart = is_apart
