"""Rows of whole sentences to pre-train on (Liu et al. 2019, arXiv 1907.11692, section 4.2).

FULL-SENTENCES: a row is filled with whole consecutive sentences while they fit, of one document or
of several, with one more separator between two documents:

    [CLS] sentence sentence [SEP] sentence of the next document [SEP]

There are no pairs, and rows are of different lengths. Where passages are held out, what surrounds
them is not consecutive, and stands apart as two documents do. Departure: a sentence that is longer
than a row is cut into parts that fill one, and a rest.
The blocks of `corpus.pack_rows`, which `distill-general` trains on, are full to the last token
instead, and cut sentences anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from transformers import PreTrainedTokenizerBase

from distill.corpora.sentences import tokenised_sentences
from distill.corpora.token_store import TokenRow

__all__ = ["RowBuilder", "full_sentence_rows"]

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
