"""Text to pre-train on: passages that stream, and dense blocks of tokens.

A passage is a line of text; an empty one stands where a document ends. No more of a corpus than
some passages is ever in memory: what needs it whole reads it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.errors import ConfigError, DataError, nearest_hint
from bertender.core.progress import track
from bertender.tasks.docs import docs_corpus
from distill.corpora.files import READERS, documents_of_lines
from distill.corpora.hub import HUB_NAME, read_hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "CORPORA",
    "CORPUS_HELP",
    "HELD_OUT_EVERY",
    "PASSAGES_AT_ONCE",
    "TEXT_COLUMN_HELP",
    "Corpus",
    "Survey",
    "Watched",
    "open_corpus",
    "pack_rows",
    "read_corpus",
    "survey",
]

HELD_OUT_EVERY = 50
"""One of so many passages, or of runs of passages, is held out of training."""

PASSAGES_AT_ONCE = 1000
"""To tokenise together: a call for each would cost more than its work."""

CORPORA: Mapping[str, Callable[[], Iterable[str]]] = {"docs": docs_corpus}
"""Corpora by name; anything else is a file or a hub data set."""

CORPUS_HELP = "docs, files (.txt, .txt.xz, .parquet), or hub data sets; several by commas"
TEXT_COLUMN_HELP = "column of the corpus's text, in Parquet files and hub data sets"


@dataclass(frozen=True)
class Corpus:
    """The passages of a corpus, read again whenever they are iterated over."""

    source: str
    text_column: str = "text"

    def __iter__(self) -> Iterator[str]:
        return read_corpus(self.source, self.text_column)


@dataclass(frozen=True)
class Survey:
    """Counts of one reading of a corpus."""

    sha256: str
    passages: int
    documents: int

    def check_enough(self) -> None:
        """Raise DataError when there are too few passages to train on some and hold out others."""
        if self.passages < HELD_OUT_EVERY:
            raise DataError(
                f"{self.passages} passages are too few to train on; at least {HELD_OUT_EVERY}. "
                "Give more text, each passage on a line of its own."
            )


@dataclass(frozen=True)
class Watched:
    """The passages of a surveyed corpus, with a bar that shows how far they are read."""

    passages: Iterable[str]
    surveyed: Survey
    description: str

    def __iter__(self) -> Iterator[str]:
        total = self.surveyed.passages + self.surveyed.documents
        return track(self.passages, self.description, total, every=PASSAGES_AT_ONCE)


def read_corpus(source: str, text_column: str = "text") -> Iterator[str]:
    """Yield the passages of a corpus, and an empty one after each document.

    Args:
        source: "docs", text files (a blank line ends a document), Parquet files or hub data sets
            (a row is a document); several by commas.
        text_column: column of the text, where there are columns.

    Raises:
        ConfigError: a name is none of these; no file is read then.
        DataError: a file is damaged, a line of it is not UTF-8, or it has no such column.
        HubUnreachableError: no hub that responds knows a data set.
    """
    for passages in open_corpus(source, text_column):
        yield from passages


def open_corpus(source: str, text_column: str = "text") -> list[Iterator[str]]:
    """Return the passages of each part of a corpus; no file is read yet.

    Raises:
        ConfigError: a part is neither a corpus by name, nor a file that is there, nor a data set.
        HubUnreachableError: no hub that responds knows a data set.
    """
    return [_opened(name.strip(), text_column) for name in source.split(",")]


def survey(passages: Iterable[str]) -> Survey:
    """Read a corpus once: its digest, which the ends of documents are part of, and its size."""
    digest = hashlib.sha256()
    counts = {True: 0, False: 0}
    for passage in track(passages, "read the corpus", every=PASSAGES_AT_ONCE):
        digest.update(passage.encode() + b"\n")
        counts[bool(passage)] += 1
    return Survey(digest.hexdigest(), passages=counts[True], documents=counts[False])


def pack_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Iterator[dict[str, list[int]]]:
    """Join passages, [SEP] after each, and cut them into blocks of exactly `max_length` tokens.

    Dense blocks waste nothing on padding, and are cut within sentences and words; the remainder
    at the end makes one shorter block. Rows of whole sentences: `rows.full_sentence_rows`.
    """
    body = max_length - 1
    waiting: list[int] = []
    for ids in _tokenised(filter(None, passages), tokenizer):
        waiting += [*ids, tokenizer.sep_token_id]
        whole = len(waiting) - len(waiting) % body
        for start in range(0, whole, body):
            yield _block([tokenizer.cls_token_id, *waiting[start : start + body]])
        del waiting[:whole]
    if waiting:
        yield _block([tokenizer.cls_token_id, *waiting])


def _block(ids: list[int]) -> dict[str, list[int]]:
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def _tokenised(texts: Iterator[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[list[int]]:
    while batch := list(islice(texts, PASSAGES_AT_ONCE)):
        tokens = tokenizer(
            batch,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        yield from tokens["input_ids"]


def _opened(name: str, text_column: str) -> Iterator[str]:
    """Return the passages of a part of the corpus."""
    if name in CORPORA:
        return documents_of_lines(CORPORA[name]())
    ending = next((ending for ending in READERS if name.endswith(ending)), None)
    if ending is not None:
        return READERS[ending](_checked_file(name), text_column)
    if HUB_NAME.fullmatch(name) and not Path(name).exists():
        return read_hub(name, text_column)
    raise ConfigError(
        f"corpus {name!r} is neither a corpus by name ({', '.join(CORPORA)}), nor a file that "
        f"ends in {' or '.join(READERS)}, nor a hub data set as OWNER/NAME."
        f"{nearest_hint(name, CORPORA)}"
    )


def _checked_file(name: str) -> Path:
    if not Path(name).is_file():
        raise ConfigError(
            f"corpus {name!r}: there is no such file. Give a path from here, or an absolute one."
        )
    return Path(name)
