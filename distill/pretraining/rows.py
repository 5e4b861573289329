"""Rows of tokens: whole sentences, stored on disk, to train on and held out."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute
import torch
from transformers import PreTrainedTokenizerBase

from bertender.core.build_once import directory_once
from bertender.core.errors import DataError
from bertender.text.batching import length_buckets
from bertender.training.examples import Padding, TensorBatch, TokenDataset
from bertender.training.loop import Objective
from distill.pretraining.corpus import HELD_OUT_EVERY, Survey, Watched

if TYPE_CHECKING:
    import datasets

# --- from distill.corpora.sentences
# Sentences of a corpus: where they end, and their tokens with the document that they are of.

PASSAGES_AT_ONCE = 256
SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)")

Sentence = list[int]
"""Its tokens."""


def split_sentences(passage: str) -> list[str]:
    """Return the sentences of a passage; an empty one, and nothing else, has an empty one.

    The white space between two is the beginning of the second, so that byte-level tokens of the
    sentences are those of the passage.
    """
    return [text for text in SENTENCE_END.split(passage) if text] or [""]


def tokenised_sentences(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, longest: int
) -> Iterator[tuple[int, Sentence]]:
    """Yield the number of the document and the tokens of each sentence.

    Args:
        passages: an empty one ends a document.
        tokenizer: adds no special tokens here.
        longest: a sentence of more tokens is cut into parts of so many, and a rest.
    """
    document = 0
    stream = iter(passages)
    while chunk := list(islice(stream, PASSAGES_AT_ONCE)):
        texts = [text for passage in chunk for text in split_sentences(passage)]
        tokens = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for text, ids in zip(texts, tokens, strict=True):
            document += not text
            for begin in range(0, len(ids), longest):
                yield document, ids[begin : begin + longest]


# --- from distill.corpora.held_out
# Held-out passages of pre-training, and the loss on them.

HELD_OUT_STEP = 2**31
"""The step that held-out masks are drawn from: no training step comes so far."""
TOKENS_PER_BATCH = 8192


def part_of(passages: Iterable[str], *, held_out: bool, run: int = 1) -> Iterator[str]:
    """Yield the passages that are held out, or those that are not.

    Args:
        passages: an empty one ends a document; these are in both parts.
        held_out: which part.
        run: so many consecutive passages are held out together. Where it is more than one, an
            empty passage stands wherever some are missing, for what surrounds them is not
            consecutive any more.
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


def held_out_loss(
    model: torch.nn.Module,
    objective: Objective,
    examples: TokenDataset,
    perplexity_of: str | None = None,
) -> dict[str, float]:
    """Return the loss on held-out rows and each of its parts, masked the same way every time.

    Args:
        model: what the objective runs.
        objective: the loss.
        examples: held-out rows.
        perplexity_of: the part whose exponential is returned as "perplexity"; None for none.
    """
    model.eval()
    means = _mean_parts(model, objective, examples)
    scores = {"loss": sum(means.values()), **(means if len(means) > 1 else {})}
    if perplexity_of is None:
        return scores
    return {**scores, "perplexity": math.exp(means[perplexity_of])}


def _mean_parts(
    model: torch.nn.Module, objective: Objective, examples: TokenDataset
) -> dict[str, float]:
    """Return each part of the loss, a mean over the batches by how many tokens they have."""
    batches = _batches(examples, next(model.parameters()).device)
    sums: dict[str, float] = defaultdict(float)
    tokens = 0
    for step, batch in enumerate(batches):
        with torch.inference_mode():
            parts = objective(model, batch, HELD_OUT_STEP + step)
        size = batch["input_ids"].numel()
        tokens += size
        for name, part in parts.items():
            sums[name] += float(part) * size
    return {name: total / tokens for name, total in sums.items()}


def _batches(examples: TokenDataset, device: torch.device) -> Iterator[TensorBatch]:
    """Yield the rows in batches of like length, on the device."""
    for bucket in length_buckets(examples.lengths, TOKENS_PER_BATCH):
        batch = examples.collate([examples[index] for index in bucket])
        yield {name: tensor.to(device) for name, tensor in batch.items()}


# --- from distill.corpora.token_store
# Token rows on disk, mapped into memory: a run reads the rows of a batch and no more.
#
# Arrow, by the `datasets` library. Rows are fetched a batch at a time, which costs a fifth of
# fetching them singly and no more than slices of a flat array.

TokenRow = Mapping[str, Sequence[int] | int]
FILE_NAME = "rows.arrow"
ROWS_AT_ONCE = 1000


class StoredTokens(TokenDataset):
    """A TokenDataset whose rows lie in an Arrow file."""

    def __init__(self, table: datasets.Dataset, padding: Padding) -> None:
        lengths = pyarrow.compute.list_value_length(table.data.column("input_ids")).to_pylist()
        columns = {name: table[name] for name in table.column_names}
        super().__init__(columns, padding, lengths=lengths)
        self.table = table

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self.table[index]
        return row

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return several rows at once, as PyTorch's data loader asks for those of a batch."""
        rows: list[dict[str, Any]] = self.table.__getitems__(indices)
        return rows


def stored(
    rows: Callable[[], Iterator[TokenRow]], directory: Path, padding: Padding
) -> StoredTokens:
    """Write rows to `directory` once, and open them.

    Args:
        rows: gives rows of equal columns: `input_ids` and its companions, and integers. It is
            called unless the directory is there, which it is only when it is complete.
        directory: in the work directory of the run.
        padding: what makes the rows of a batch equally long.

    Raises:
        DataError: there are no rows.
    """
    import datasets  # a second of imports

    # the name of the run's work directory carries all that shapes the rows
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
        passages: the corpus, read again for each.
        surveyed: the survey of it.
        rows: makes rows of passages.
        directory: in the work directory of the run.
        padding: what makes the rows of a batch equally long.
        run: so many consecutive passages are held out together; see `part_of`.

    Raises:
        DataError: a part has no rows.
    """

    def of_part(name: str, *, held_out: bool) -> StoredTokens:
        watched = Watched(passages, surveyed, f"tokenise {name} text")
        part = part_of(watched, held_out=held_out, run=run)
        return stored(lambda: rows(part), directory / name, padding)

    return of_part("training", held_out=False), of_part("held-out", held_out=True)


def _write(rows: Iterator[TokenRow], path: Path) -> None:
    from datasets.arrow_writer import ArrowWriter

    first = next(rows, None)
    if first is None:
        raise DataError("the corpus gives no example to train on or to hold out. Give more text.")
    features = _features(first)
    with ArrowWriter(path=str(path), features=features, writer_batch_size=ROWS_AT_ONCE) as writer:
        for row in chain([first], rows):
            writer.write(row)
        writer.finalize()


def _features(row: TokenRow) -> datasets.Features:
    """Return the types of columns: half as wide as Python's integers, which halves the file."""
    from datasets import Features, List, Value

    return Features(
        {
            name: Value("int32") if isinstance(value, int) else List(Value("int32"))
            for name, value in row.items()
        }
    )


# --- from distill.corpora.rows
# Rows of whole sentences to pre-train on (Liu et al. 2019, arXiv 1907.11692, section 4.2).
#
# FULL-SENTENCES: a row is filled with whole consecutive sentences while they fit, of one document
# or
# of several, with one more separator between two documents:
#
#     [CLS] sentence sentence [SEP] sentence of the next document [SEP]
#
# There are no pairs, and rows are of different lengths. Where passages are held out, what
# surrounds
# them is not consecutive, and stands apart as two documents do. Departure: a sentence that is
# longer
# than a row is cut into parts that fill one, and a rest.
# The blocks of `corpus.pack_rows`, which `distill-general` trains on, are full to the last token
# instead, and cut sentences anywhere.

RowBuilder = Callable[[Iterable[str], PreTrainedTokenizerBase, int, int], Iterator[TokenRow]]
"""(passages with an empty one between documents, tokenizer, most tokens, seed) -> rows"""

SPECIAL_TOKENS = 2
"""[CLS] and the last [SEP]."""


def full_sentence_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int
) -> Iterator[TokenRow]:
    """Yield rows of at most `max_length` tokens that hold whole sentences; nothing is drawn.

    Args:
        passages: an empty one ends a document.
        tokenizer: names the tokens that frame a row and stand between documents.
        max_length: most tokens of a row, those of the frame included.
        seed: unused, as rows are made by no chance.
    """
    room = max_length - SPECIAL_TOKENS
    body: list[int] = []
    before = 0
    for document, sentence in tokenised_sentences(passages, tokenizer, longest=room):
        border = [tokenizer.sep_token_id] if body and document != before else []
        if len(body) + len(border) + len(sentence) > room:
            yield _row(body, tokenizer)
            body, border = [], []
        body += [*border, *sentence]
        before = document
    if body:
        yield _row(body, tokenizer)


def _row(body: list[int], tokenizer: PreTrainedTokenizerBase) -> TokenRow:
    ids = [tokenizer.cls_token_id, *body, tokenizer.sep_token_id]
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}
