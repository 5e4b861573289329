"""Pairs of segments to pre-train on, from a stream of passages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import numpy as np
from transformers import PreTrainedTokenizerBase

from distill.pretraining.rows import Sentence, TokenRow, tokenised_sentences

NEXT_SENTENCE = "next_sentence_label"
"""Column: 0 where B follows A, 1 where it comes from elsewhere."""
SENTENCE_ORDER = "sentence_order_label"
"""Column: 0 where A and B are in their order, 1 where they are swapped."""

SHORT_SHARE = 0.1
SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
REMEMBERED_ROWS = 1000
"""Earlier rows that other segments are drawn from."""

Segment = Sentence


def next_sentence_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int
) -> Iterator[TokenRow]:
    """Yield pairs of which half are true next sentences, with NEXT_SENTENCE.

    Args:
        passages: an empty one ends a document.
        tokenizer: names the tokens that frame a pair.
        max_length: most tokens of a row, those of the frame included.
        seed: what lengths, divisions and other segments are drawn from.
    """
    elsewhere = Elsewhere(np.random.default_rng((seed, 1)))
    return _rows(passages, tokenizer, max_length, seed, NEXT_SENTENCE, elsewhere.pair)


def sentence_order_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int
) -> Iterator[TokenRow]:
    """Yield pairs of which half are swapped, with SENTENCE_ORDER; see `next_sentence_rows`."""
    return _rows(passages, tokenizer, max_length, seed, SENTENCE_ORDER, _swapped_by_chance)


@dataclass(frozen=True)
class _Pair:
    first: Segment
    second: Segment
    label: int
    unused: Sequence[Segment] = ()
    """Sentences that are to be read again."""


@dataclass(frozen=True)
class _Filling:
    """Consecutive sentences of a document, two at least, that fill a row."""

    sentences: Sequence[Segment]
    document: int
    place: int
    """Sentences of the corpus that stand before it."""
    length: int
    """Tokens that both segments have together in the end."""
    halves: bool
    """They are one sentence, divided."""


PairBuilder = Callable[[_Filling, np.random.Generator], _Pair]


def _rows(
    passages: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    seed: int,
    label: str,
    build: PairBuilder,
) -> Iterator[TokenRow]:
    generator = np.random.default_rng((seed, 0))
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    room = max_length - SPECIAL_TOKENS
    sentences = tokenised_sentences(passages, tokenizer, longest=max(1, room // 2))
    for filling, waiting in _fillings(sentences, room, generator):
        pair = build(filling, generator)
        waiting.extendleft(reversed(pair.unused))
        first, second = _cut(pair, filling.length, generator)
        ids = [start, *first, end, *second, end]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        yield {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "token_type_ids": types,
            label: pair.label,
        }


def _fillings(
    sentences: Iterator[tuple[int, Segment]], room: int, generator: np.random.Generator
) -> Iterator[tuple[_Filling, deque[Segment]]]:
    """Yield what fills a row, with the queue that unused sentences go back to."""
    place = 0
    for document, group in groupby(sentences, key=itemgetter(0)):
        rest = map(itemgetter(1), group)
        waiting: deque[Segment] = deque()
        while True:
            short = generator.random() < SHORT_SHARE
            length = int(generator.integers(2, room + 1)) if short else room
            taken = _taken(waiting, rest, length)
            segments = taken if len(taken) > 1 else _halves(taken)
            if not segments:
                break
            length = min(length, sum(map(len, segments)))
            left = len(waiting)
            yield _Filling(segments, document, place, length, halves=len(taken) == 1), waiting
            place += len(taken) - (len(waiting) - left)


def _taken(waiting: deque[Segment], rest: Iterator[Segment], length: int) -> list[Segment]:
    """Take sentences until they have so many tokens, or there are no more."""
    taken: list[Segment] = []
    while sum(map(len, taken)) < length:
        sentence = waiting.popleft() if waiting else next(rest, None)
        if sentence is None:
            break
        taken.append(sentence)
    return taken


def _halves(sentences: list[Segment]) -> list[Segment]:
    """Divide a sentence without company; one of a single token is dropped."""
    return [
        half
        for sentence in sentences
        for half in (sentence[: len(sentence) // 2], sentence[len(sentence) // 2 :])
        if len(sentence) > 1
    ]


def _divided(
    filling: _Filling, generator: np.random.Generator
) -> tuple[Segment, Sequence[Segment]]:
    """Return A, and the sentences that follow it."""
    at = int(generator.integers(1, len(filling.sentences)))
    return _joined(filling.sentences[:at]), filling.sentences[at:]


def _joined(sentences: Iterable[Segment]) -> Segment:
    return [token for sentence in sentences for token in sentence]


def _swapped_by_chance(filling: _Filling, generator: np.random.Generator) -> _Pair:
    first, rest = _divided(filling, generator)
    second = _joined(rest)
    swapped = int(generator.random() < 0.5)
    return _Pair(second, first, 1) if swapped else _Pair(first, second, 0)


@dataclass
class Elsewhere:
    """Keeps some earlier fillings, to draw segments from that do not follow."""

    generator: np.random.Generator
    remembered: list[_Filling] = field(default_factory=list)

    def pair(self, filling: _Filling, generator: np.random.Generator) -> _Pair:
        """Build a true pair, or one whose second segment is from elsewhere."""
        first, rest = _divided(filling, generator)
        displaced = filling.length - len(first)
        other = self._other(filling, displaced) if generator.random() < 0.5 else None
        self.keep(filling)
        if other is None:
            return _Pair(first, _joined(rest), 0)
        second = self._segment(other, displaced)
        return _Pair(first, second, 1, unused=() if filling.halves else rest)

    def _other(self, filling: _Filling, displaced: int) -> _Filling | None:
        """Return an earlier filling, of another document and long enough where one is stored.

        Of the same document it must end before: what was displaced is in a filling twice.
        """
        others = [each for each in self.remembered if each.document != filling.document] or [
            each for each in self.remembered if each.place + len(each.sentences) <= filling.place
        ]
        others = [each for each in others if each.length >= displaced] or others
        return others[int(self.generator.integers(len(others)))] if others else None

    def _segment(self, filling: _Filling, length: int) -> Segment:
        """Return sentences from a random one on that fill the length, if there are so many."""
        sentences = filling.sentences
        tails = [_joined(sentences[begin:]) for begin in range(len(sentences))]
        enough = [tail for tail in tails if len(tail) >= length] or tails[:1]
        return enough[int(self.generator.integers(len(enough)))]

    def keep(self, filling: _Filling) -> None:
        """Keep a filling, instead of a random earlier one when there are enough of them."""
        if len(self.remembered) < REMEMBERED_ROWS:
            self.remembered.append(filling)
        else:
            self.remembered[int(self.generator.integers(REMEMBERED_ROWS))] = filling


def _cut(pair: _Pair, length: int, generator: np.random.Generator) -> tuple[Segment, Segment]:
    """Cut a pair to `length` tokens; both segments keep one at least."""
    segments = [deque(pair.first), deque(pair.second)]
    while sum(map(len, segments)) > length:
        longer = max(segments, key=len)
        if generator.random() < 0.5:
            longer.popleft()
        else:
            longer.pop()
    return list(segments[0]), list(segments[1])
