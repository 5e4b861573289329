"""Rows of tokens to train on and to hold out: made of passages, and stored on disk.

Of several languages, rows are sampled more evenly than the corpus has text of them.
XLM (Lample and Conneau 2019, arXiv 1901.07291, section 3.1, eq. 1): where p_i is the share of
language i, it is sampled with

    q_i = p_i^alpha / sum_j p_j^alpha

so that an alpha below 1 has more of rare languages, of the vocabulary and of the training.
Departures: nothing is drawn. A pass has everything of every language; what is of language i comes
f_i = (q_i / p_i) / min_j (q_j / p_j) times in the mean, evenly. The shares are those of tokens, or,
before there is a vocabulary, of characters; the paper's are of sentences.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bertender.core.build_once import directory_once
from bertender.core.errors import ConfigError, DataError
from bertender.core.findings import LanguageShare
from bertender.text.batch import batched, length_buckets
from bertender.training.examples import Padding, TokenDataset
from bertender.training.steps import Objective
from distill.pretraining.config import DOC_SENTENCES, FULL_SENTENCES, PretrainConfig
from distill.pretraining.corpus import (
    HELD_OUT_EVERY,
    PASSAGES_AT_ONCE,
    Corpus,
    Survey,
    Watched,
    open_corpus,
    survey,
)

if TYPE_CHECKING:
    import datasets


SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)")
FRAME = 2
"""Tokens that frame a row: [CLS] and the last [SEP]."""
CONSECUTIVE_PASSAGES = 8
"""So many are held out together by `pretrain`: its held-out rows are then like the others, which
run over passages or are cut from several."""
HELD_OUT_STEP = 2**31
"""The step that held-out masks are drawn from: no training step comes so far."""
TOKENS_PER_BATCH = 8192
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

    DOC-SENTENCES are the same, but a row ends where its document does, and may be short: batches
    are filled by their tokens, so that more of such rows are in one.
    There are no pairs, and rows are of different lengths. Where passages are held out, what
    surrounds them is not consecutive, and is kept apart as two documents are. Departure: a sentence
    that is longer than a row is cut into parts that fill one, and a rest.

    Args:
        passages: an empty one ends a document.
        tokenizer: names the tokens that frame a row and stand between documents.
        max_length: most tokens of a row, those of the frame included.
        packing: one of PACKINGS.
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

    Dense blocks, which `distill-general` trains on, waste nothing on padding, and are cut within
    sentences and words; the remainder at the end makes one shorter block.
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
    document, puts_space = 0, _puts_space(tokenizer)
    for chunk in batched(passages, PASSAGES_AT_ONCE):
        texts = [text for passage in chunk for text in split_sentences(passage)]
        if puts_space:
            texts = [text.removeprefix(" ") for text in texts]
        tokens = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for text, ids in zip(texts, tokens, strict=True):
            document += not text
            for begin in range(0, len(ids), longest):
                yield document, ids[begin : begin + longest]


def _puts_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts a space before any text, one that begins with a space too.

    A sentence in a passage has that space already.
    """
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return normalizer is not None and len(normalizer.normalize_str(" a")) > len(" a")


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

    Each part is a mean over the batches, weighted by their tokens.

    Args:
        model: what the objective runs.
        objective: the loss.
        examples: held-out rows.
        perplexity_of: the part whose exponential is returned as "perplexity"; None for none.
    """
    model.eval()
    device = next(model.parameters()).device
    sums: dict[str, float] = defaultdict(float)
    tokens = 0
    for step, bucket in enumerate(length_buckets(examples.lengths, TOKENS_PER_BATCH)):
        batch = examples.collate([examples[index] for index in bucket])
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.inference_mode():
            parts = objective(model, batch, HELD_OUT_STEP + step)
        size = batch["input_ids"].numel()
        tokens += size
        for name, part in parts.items():
            sums[name] += float(part) * size
    means = {name: total / tokens for name, total in sums.items()}
    scores = {"loss": sum(means.values()), **(means if len(means) > 1 else {})}
    if perplexity_of is not None:
        scores["perplexity"] = math.exp(means[perplexity_of])
    return scores


class StoredTokens(TokenDataset):
    """A TokenDataset whose rows lie in an Arrow file, mapped into memory.

    A run reads the rows of a batch and no more. They are fetched a batch at a time, which costs a
    fifth of fetching them singly and no more than slices of a flat array.
    """

    def __init__(
        self, table: datasets.Dataset, padding: Padding, lengths: Sequence[int] | None = None
    ) -> None:
        """Open a table; its lengths must be given where it is a selection of another's rows."""
        if lengths is None:
            column = table.data.column("input_ids")
            lengths = pyarrow.compute.list_value_length(column).to_pylist()
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
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    first = next(rows, None)
    if first is None:
        raise DataError("the corpus gives no example to train on or to hold out. Give more text.")
    # half as wide as Python's integers, which halves the file
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


DECIMALS = 9
"""Of a factor: one that is 3 must not be computed as 2.9999."""


@dataclass(frozen=True)
class Language:
    """A part of a corpus, and the survey of it."""

    name: str
    passages: Iterable[str]
    surveyed: Survey


@dataclass(frozen=True)
class Repeated:
    """The passages of several languages, each as often as its language's factor says.

    Ends of documents are left out: a vocabulary does not read them.
    """

    languages: Sequence[Language]
    factors: Sequence[float]

    def __iter__(self) -> Iterator[str]:
        for language, factor in zip(self.languages, self.factors, strict=True):
            times = repetitions(language.surveyed.passages, factor).tolist()
            for passage, count in zip(filter(None, language.passages), times, strict=True):
                yield from repeat(passage, count)


def languages_of(passages: Iterable[str], config: PretrainConfig) -> tuple[Language, ...]:
    """Read a corpus once and return its languages; it is one where none are sampled.

    Raises:
        ConfigError: `config.language_alpha` is set, and the passages have no parts, or one of them
            is not there.
        DataError: a language has too few passages to train on some and hold out others.
    """
    parts: Sequence[tuple[str, Iterable[str]]] = [("", passages)]
    if config.language_alpha is not None:
        if not isinstance(passages, Corpus):
            raise ConfigError(
                f"language_alpha={config.language_alpha}: these passages are one text. Give a "
                "corpus of several parts by commas, a language each."
            )
        open_corpus(passages.source, passages.text_column)  # all parts are there
        parts = [(part.source, part) for part in passages.parts()]
    languages = tuple(Language(name, part, survey(part)) for name, part in parts)
    for language in languages:
        language.surveyed.check_enough(language.name)
    return languages


def sampled_shares(sizes: Sequence[float], alpha: float) -> NDArray[np.float64]:
    """Return q of each language (languages,), from their sizes in any unit."""
    powers = (np.asarray(sizes, dtype=float) / sum(sizes)) ** alpha
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares


def factors_of(sizes: Sequence[float], alpha: float) -> list[float]:
    """Return f of each language: how often a thing of it comes in a pass, 1 or more in the mean."""
    more = sampled_shares(sizes, alpha) / np.asarray(sizes, dtype=float)
    factors: list[float] = np.round(more / more.min(), DECIMALS).tolist()
    return factors


def repetitions(count: int, factor: float) -> NDArray[np.int64]:
    """Return how often each of some things comes: floor((k + 1) f) - floor(k f) times thing k."""
    times: NDArray[np.int64] = np.diff(np.floor(np.arange(count + 1) * factor)).astype(np.int64)
    return times


def sampled_passages(languages: Sequence[Language], alpha: float | None) -> Iterable[str]:
    """Return the passages that a vocabulary is learned from, with a bar as they are read."""
    what = "train the vocabulary"
    if alpha is None:
        (whole,) = languages
        return Watched(whole.passages, whole.surveyed, what)
    factors = factors_of([each.surveyed.characters for each in languages], alpha)
    count = sum(
        int(repetitions(each.surveyed.passages, factor).sum())
        for each, factor in zip(languages, factors, strict=True)
    )
    size = Survey(sha256="", passages=count, documents=0)
    return Watched(Repeated(languages, factors), size, what)


def sampled_rows(
    rows: Sequence[StoredTokens], names: Sequence[str], alpha: float | None
) -> tuple[StoredTokens, tuple[LanguageShare, ...]]:
    """Return the rows of several languages as a pass reads them, and the shares of tokens.

    Args:
        rows: to train on, of each language.
        names: of the languages.
        alpha: the exponent; None of one language, which has no shares.
    """
    if alpha is None:
        return joined(rows), ()
    sizes = [sum(each.lengths) for each in rows]
    factors = factors_of(sizes, alpha)
    times = [repetitions(len(each), f) for each, f in zip(rows, factors, strict=True)]
    after = [int(np.dot(each.lengths, own)) for each, own in zip(rows, times, strict=True)]
    shares = tuple(
        LanguageShare(name=name, tokens=size, share=size / sum(sizes), sampled=own / sum(after))
        for name, size, own in zip(names, sizes, after, strict=True)
    )
    return joined(rows, np.concatenate(times)), shares


def joined(rows: Sequence[StoredTokens], times: NDArray[np.int64] | None = None) -> StoredTokens:
    """Return rows of several files as one, each as often as `times` says, or once."""
    if len(rows) == 1 and times is None:
        return rows[0]
    import datasets  # a second of imports

    table = datasets.concatenate_datasets([each.table for each in rows])
    lengths = np.concatenate([each.lengths for each in rows])
    if times is not None:
        numbers = np.repeat(np.arange(len(table)), times)
        table, lengths = table.select(numbers), lengths[numbers]
    return StoredTokens(table, rows[0].padding, lengths.tolist())
