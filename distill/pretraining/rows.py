"""Rows of tokens: built from passages, split into training and held-out rows, stored on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute
from transformers import PreTrainedTokenizerBase

from bertender.core.build_once import directory_once
from bertender.core.errors import DataError
from bertender.text.batch import batched
from bertender.text.tokenizer import Padding
from bertender.training.examples import TokenDataset
from distill.pretraining.config import DOC_SENTENCES, FULL_SENTENCES
from distill.pretraining.corpus import (
    HELD_OUT_EVERY,
    PASSAGES_AT_ONCE,
    Survey,
    Watched,
)

if TYPE_CHECKING:
    import datasets


SENTENCE_END = re.compile(r"(?<=[.!?\u0964\u061f\u06d4])(?=\s)")
"""Also after the full stops of Hindi and Urdu, and the question mark of Arabic."""
FRAME = 2
"""Tokens that frame a row: [CLS] and the last [SEP]."""
CONSECUTIVE_PASSAGES = 8
"""Consecutive passages that `pretrain` holds out together, so that held-out rows span passages like
training rows."""
FILE_NAME = "rows.arrow"
ROWS_AT_ONCE = 1000

TokenRow = Mapping[str, Sequence[int] | int]
Sentence = list[int]
"""Its tokens."""


def full_sentence_rows(
    passages: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    packing: str = FULL_SENTENCES,
) -> Iterator[TokenRow]:
    """Yield rows of at most `max_length` tokens that hold whole sentences.

    FULL-SENTENCES (Liu et al. 2019, arXiv 1907.11692, section 4.2): a row is filled with whole
    consecutive sentences while they fit, of one document or of several, with one more separator
    between two documents:

        [CLS] sentence sentence [SEP] sentence of the next document [SEP]

    DOC-SENTENCES are the same, but a row ends with its document and may be short; batches are
    filled by tokens, and then have more rows. There are no pairs, and rows differ in length. Text
    before and after held-out passages is separated like two documents. Departure: a sentence longer
    than a row is cut into parts.

    Args:
        passages: passages; an empty one ends a document.
        tokenizer: tokenizer with the special tokens of rows and documents.
        max_length: most tokens of a row, including special tokens.
        packing: a name in PACKINGS.
    """
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    body: list[int] = []
    before = 0
    for document, sentence in tokenised_sentences(passages, tokenizer, max_length - FRAME):
        border = [end] if body and document != before else []
        ends = bool(border) and packing == DOC_SENTENCES
        if ends or len(body) + len(border) + len(sentence) > max_length - FRAME:
            yield _row([start, *body, end])
            body, border = [], []
        body += [*border, *sentence]
        before = document
    if body:
        yield _row([start, *body, end])


def pack_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> Iterator[TokenRow]:
    """Join passages, [SEP] after each, and cut them into blocks of exactly `max_length` tokens.

    Dense blocks, for `distill-general`, need no padding, but may cut sentences and words. The last
    block may be shorter.
    """
    body = max_length - 1
    waiting: list[int] = []
    for texts in batched(filter(None, passages), PASSAGES_AT_ONCE):
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            waiting += [*ids, tokenizer.sep_token_id]
            whole = len(waiting) - len(waiting) % body
            for start in range(0, whole, body):
                yield _row([tokenizer.cls_token_id, *waiting[start : start + body]])
            del waiting[:whole]
    if waiting:
        yield _row([tokenizer.cls_token_id, *waiting])


def _row(ids: list[int]) -> TokenRow:
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}


def split_sentences(passage: str) -> list[str]:
    """Return the sentences of a passage; an empty passage has one empty sentence.

    White space between sentences belongs to the second, so that byte-level tokens are those of the
    whole passage.
    """
    return [text for text in SENTENCE_END.split(passage) if text] or [""]


def tokenised_sentences(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, longest: int
) -> Iterator[tuple[int, Sentence]]:
    """Yield the number of the document and the tokens of each sentence.

    Args:
        passages: passages; an empty one ends a document.
        tokenizer: tokenizer, used without special tokens.
        longest: most tokens of a sentence; longer ones are cut into parts of this length.
    """
    document, puts_space = 0, _puts_space(tokenizer)
    for chunk in batched(passages, PASSAGES_AT_ONCE):
        texts = [text for passage in chunk for text in split_sentences(passage)]
        if puts_space:
            texts = [text.removeprefix(" ") or text for text in texts]  # "" ends a document
        tokens = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for text, ids in zip(texts, tokens, strict=True):
            document += not text
            for begin in range(0, len(ids), longest):
                yield document, ids[begin : begin + longest]


def _puts_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer adds a space before any text, even before a space, with which the
    sentences of a passage begin."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return normalizer is not None and len(normalizer.normalize_str(" a")) > len(" a")


def part_of(passages: Iterable[str], *, held_out: bool, run: int = 1) -> Iterator[str]:
    """Yield the held-out passages, or the others.

    Args:
        passages: passages; an empty one ends a document, and is in both parts.
        held_out: whether to yield the held-out part.
        run: consecutive passages that are held out together. If more than one, an empty passage
            replaces them in the other part.
    """
    number, gap = 0, False
    for passage in passages:
        if passage and (number // run % HELD_OUT_EVERY == 0) != held_out:
            gap = run > 1
        else:
            if gap and passage:
                yield ""
            gap = False
            yield passage
        number += bool(passage)


class StoredTokens(TokenDataset):
    """A TokenDataset with its rows in a memory-mapped Arrow file.

    Only the rows of a batch are read. Fetching a whole batch costs a fifth of fetching single rows,
    and no more than slices of a flat array.
    """

    def __init__(
        self, table: datasets.Dataset, padding: Padding, lengths: Sequence[int] | None = None
    ) -> None:
        """Open a table; a selection of another table's rows needs its lengths."""
        if lengths is None:
            column = table.data.column("input_ids")
            lengths = pyarrow.compute.list_value_length(column).to_pylist()
        columns = {name: table[name] for name in table.column_names}
        super().__init__(columns, padding, lengths=lengths)
        self.table = table

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self.table[index]
        return row

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.__getitems__([*indices])
        return rows


def stored(
    rows: Callable[[], Iterator[TokenRow]], directory: Path, padding: Padding
) -> StoredTokens:
    """Write rows to `directory` once, and open them.

    Args:
        rows: returns rows with equal columns: `input_ids` and columns like it, and integers. It is
            called unless the directory exists, which is then complete.
        directory: directory in the work directory of the run.
        padding: padding of a batch's rows.

    Raises:
        DataError: there are no rows.
    """
    import datasets  # a slow import

    # the work directory's name identifies all settings of the rows
    directory_once(directory, "tokens", lambda draft: _write(rows(), draft / FILE_NAME))
    table = datasets.Dataset.from_file(str(directory / FILE_NAME))
    return StoredTokens(table, padding)


def stored_parts(
    passages: Iterable[str],
    surveyed: Survey,
    rows: Callable[[Iterable[str]], Iterator[TokenRow]],
    directory: Path,
    padding: Padding,
    run: int = 1,
) -> tuple[StoredTokens, StoredTokens]:
    """Store the rows of a corpus below `directory`: to train on, and held out.

    Args:
        passages: the corpus, read once for each part.
        surveyed: survey of the corpus.
        rows: passages -> their rows.
        directory: directory in the work directory of the run.
        padding: padding of a batch's rows.
        run: consecutive passages that are held out together; see `part_of`.

    Raises:
        DataError: a part has no rows.
    """

    def of_part(name: str, *, held_out: bool) -> StoredTokens:
        watched = Watched(passages, surveyed, f"tokenise {name} text")
        part = part_of(watched, held_out=held_out, run=run)
        return stored(lambda: rows(part), directory / name, padding)

    return of_part("training", held_out=False), of_part("held-out", held_out=True)


def _write(rows: Iterator[TokenRow], path: Path) -> None:
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    first = next(rows, None)
    if first is None:
        raise DataError("the corpus is too short for training and held-out rows. Give more text.")
    # int32 instead of int64 halves the file
    features = {
        name: Value("int32") if isinstance(value, int) else List(Value("int32"))
        for name, value in first.items()
    }
    with ArrowWriter(
        path=str(path), features=Features(features), writer_batch_size=ROWS_AT_ONCE
    ) as writer:
        for row in chain([first], rows):
            writer.write(row)
        writer.finalize()
