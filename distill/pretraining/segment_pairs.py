"""Pairs of segments: their rows, and objectives that predict their relation.

Rows, from a stream of passages with an empty one between documents: passages are cut into
sentences, longer ones than half a row into parts; consecutive ones of a document fill a row up to
its length, in one of ten cases up to a random shorter one (Devlin et al. 2018, arXiv 1810.04805,
A.2), and are divided at a random sentence into A and B:

    [CLS] A [SEP] B [SEP], token types 0 and 1

Next sentence: in half of the rows B is from elsewhere, and the displaced text is used again.
Sentence order (Lan et al. 2019, arXiv 1909.11942, 3.1): in half of the rows A and B are swapped.
Sentence structure (Wang et al. 2019, arXiv 1908.04577, 2.3): in a third B follows A, in a third
they are swapped, in a third B is from elsewhere. Pairs that are too long lose tokens from the
longer segment, at its beginning or its end at random. Only one row is in memory, with some earlier
ones to draw segments from. Departures: other segments come from earlier in the corpus, from another
document if possible, and are cut like the displaced text and about as long, so that neither lengths
nor borders reveal them; a single sentence is divided into halves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, groupby
from operator import itemgetter
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.training.examples import TensorBatch
from bertender.training.heads.head import hard_labels
from bertender.training.steps import LossParts, Objective
from distill.pretraining.config import FULL_SENTENCES
from distill.pretraining.masking import Chooser, WordSpans, word_marks
from distill.pretraining.objectives import (
    ORDER_TARGETS,
    PretrainingModule,
    WordOrder,
    shared_settings,
)
from distill.pretraining.rows import Sentence, TokenRow, tokenised_sentences

NEXT_SENTENCE = "next_sentence_label"
"""Column: 0 where B follows A, 1 where it comes from elsewhere."""
SENTENCE_ORDER = "sentence_order_label"
"""Column: 0 where A and B are in their order, 1 where they are swapped."""
SENTENCE_STRUCTURE = "sentence_structure_label"
"""Column: 0 where B follows A, 1 where it precedes A, 2 where it comes from elsewhere."""

SHORT_SHARE = 0.1
SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""
REMEMBERED_ROWS = 1000
"""Number of earlier rows to draw other segments from."""
N_GRAMS = (1, 1 / 2, 1 / 3)
"""Weights of masked n-grams of 1, 2 and 3 words."""
ALBERT_EMBEDDING_SIZE = 128

Segment = Sentence


class RelatedPairs(PretrainingModule):
    """A model with a pooler, and a head that predicts the relation of a pair's segments.

    The head is a linear layer on the pooled state of [CLS], which only training needs; the pooler
    stays in the model, for later classifiers. Loss = cross-entropy over the masked tokens + that of
    the relation, both means.
    """

    language_head: ClassVar[str]
    """Path of the model's masked-language head."""
    relation: ClassVar[str]
    """Name of the relation's part of the loss."""
    label: ClassVar[str]
    """Column of the relation, (batch,), from 0."""
    relations: ClassVar[int] = 2

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.relation_head = self.with_own_weights(
            nn.Linear(model.config.hidden_size, self.relations)
        )

    def forward(self, batch: TensorBatch) -> dict[str, torch.Tensor]:
        """Return the parts of the loss on a masked batch."""
        outputs = self.encoded(batch)
        tokens = self.model.get_submodule(self.language_head)(outputs.last_hidden_state)
        relation = self.relation_head(outputs.pooler_output)  # (batch, relations)
        return {
            **self.token_losses(tokens, batch),
            self.relation: hard_labels(relation, batch[self.label]),
        }

    def token_losses(self, logits: torch.Tensor, batch: TensorBatch) -> dict[str, torch.Tensor]:
        """Return the parts of the loss of the masked-language head.

        Args:
            logits: (batch, seq, vocab).
            batch: corrupted by the objective.
        """
        return {"mlm": hard_labels(logits, batch["targets"])}

    @classmethod
    def pair_builder(cls, seed: int) -> PairBuilder:
        """Return the builder of a pair from the sentences of a row."""
        raise NotImplementedError

    @classmethod
    def rows(
        cls,
        passages: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        seed: int,
        packing: str = FULL_SENTENCES,
    ) -> Iterator[TokenRow]:
        """Yield pairs, the relation of each in the column `label`.

        Args:
            passages: passages; an empty one ends a document.
            tokenizer: tokenizer with the special tokens of a pair.
            max_length: most tokens of a row, including special tokens.
            seed: seed of lengths, divisions and other segments.
            packing: unused, since each segment is from one document.
        """
        build = cls.pair_builder(seed)
        generator = np.random.default_rng((seed, 0))
        start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
        room = max_length - SPECIAL_TOKENS
        sentences = tokenised_sentences(passages, tokenizer, longest=max(1, room // 2))
        for filling, waiting in _fillings(sentences, room, generator):
            pair = build(filling, generator)
            waiting.extendleft(reversed(pair.unused))
            segments = [deque(pair.first), deque(pair.second)]
            while sum(map(len, segments)) > filling.length:
                longer = max(segments, key=len)  # so that both keep at least one token
                shorten = longer.popleft if generator.random() < 0.5 else longer.pop
                shorten()
            first, second = segments
            ids = [start, *first, end, *second, end]
            yield {
                "input_ids": ids,
                "attention_mask": [1] * len(ids),
                "token_type_ids": [0] * (len(first) + 2) + [1] * (len(second) + 1),
                cls.label: pair.label,
            }


class NextSentence(RelatedPairs):
    """Masked tokens and next-sentence prediction (Devlin et al. 2018, arXiv 1810.04805, 3.1).

    Departure: masks are drawn for every batch, not ten times for the whole corpus.
    """

    language_head = "cls"
    relation = "nsp"
    label = NEXT_SENTENCE

    @classmethod
    def untrained(cls, shape: BertConfig) -> PreTrainedModel:
        return _with_pooler(BertForMaskedLM(shape))

    @classmethod
    def pair_builder(cls, seed: int) -> PairBuilder:
        return Elsewhere(np.random.default_rng((seed, 1))).pair


class SentenceOrder(RelatedPairs):
    """ALBERT (Lan et al. 2019, arXiv 1909.11942): n-gram masking and sentence-order prediction.

    Model: the ALBERT class, with one layer shared by all depths, and embeddings of 128 that a
    linear layer projects to the width (section 3.1).
    Masks: n-grams of whole words, of length n <= 3 with p(n) = (1/n) / sum_k (1/k) (section 4.1),
    until the share of tokens is used up; 80/10/10 by token.
    Departures: the vocabulary is whatever `pretrain` trains, not SentencePiece's of 30,000; AdamW
    instead of LAMB.
    """

    language_head = "predictions"
    relation = "sop"
    label = SENTENCE_ORDER

    @classmethod
    def untrained(cls, shape: BertConfig) -> PreTrainedModel:
        embedding_size = min(ALBERT_EMBEDDING_SIZE, shape.hidden_size)
        config = AlbertConfig(embedding_size=embedding_size, **shared_settings(shape))
        return _with_pooler(AlbertForMaskedLM(config))

    @classmethod
    def pair_builder(cls, seed: int) -> PairBuilder:
        return _swapped_at_random

    @classmethod
    def chooser(cls, tokenizer: PreTrainedTokenizerBase) -> Chooser:
        return WordSpans(word_marks(tokenizer), N_GRAMS)


class StructuredPairs(RelatedPairs):
    """StructBERT (Wang et al. 2019, arXiv 1908.04577): the order of words and of sentences.

    Word structural objective (section 2.2): see `WordOrder`. Sentence structural objective (section
    2.3): whether B is the next sentence, the previous one or another, a third of the rows each; the
    first rows of a corpus have only two classes. Loss = cross-entropy over the masked tokens + over
    the shuffled positions + of the relation, all means.
    """

    language_head = "cls"
    relation = "structure"
    label = SENTENCE_STRUCTURE
    relations = 3

    @classmethod
    def untrained(cls, shape: BertConfig) -> PreTrainedModel:
        return _with_pooler(BertForMaskedLM(shape))

    @classmethod
    def pair_builder(cls, seed: int) -> PairBuilder:
        return Elsewhere(np.random.default_rng((seed, 1))).structured_pair

    @classmethod
    def objective(cls, tokenizer: PreTrainedTokenizerBase, share: float, seed: int) -> Objective:
        return ShuffledBatch(tokenizer, share, seed)

    def token_losses(self, logits: torch.Tensor, batch: TensorBatch) -> dict[str, torch.Tensor]:
        order = hard_labels(logits, batch[ORDER_TARGETS])
        return {**super().token_losses(logits, batch), "word_order": order}


class ShuffledBatch(WordOrder):
    """Objective on shuffled words, for a module that computes its own loss."""

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        parts: LossParts = model(self.masked_batch(batch, step))
        return parts


def _with_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """Add the pooler, which transformers leaves out of models with a masked-language head."""
    setattr(model, model.base_model_prefix, type(model.base_model)(model.config))
    model.tie_weights()
    return model


@dataclass(frozen=True)
class _Pair:
    first: Segment
    second: Segment
    label: int
    unused: Sequence[Segment] = ()
    """Sentences to read again."""


@dataclass(frozen=True)
class _Filling:
    """Consecutive sentences of a document, at least two, that fill a row."""

    sentences: Sequence[Segment]
    document: int
    place: int
    """Number of sentences before these in the corpus."""
    length: int
    """Tokens of both segments together."""
    halves: bool
    """Whether this is a single sentence, divided."""

    @property
    def whole(self) -> Sequence[Segment]:
        """The undivided sentences."""
        return [_joined(self.sentences)] if self.halves else self.sentences


PairBuilder = Callable[[_Filling, np.random.Generator], _Pair]


def _fillings(
    sentences: Iterator[tuple[int, Segment]], room: int, generator: np.random.Generator
) -> Iterator[tuple[_Filling, deque[Segment]]]:
    """Yield the sentences of each row, with the queue for unused ones."""
    place = 0
    for document, group in groupby(sentences, key=itemgetter(0)):
        rest = map(itemgetter(1), group)
        waiting: deque[Segment] = deque()
        while True:
            short = generator.random() < SHORT_SHARE
            length = int(generator.integers(2, room + 1)) if short else room
            taken = _take(waiting, rest, length)
            segments = taken
            if len(taken) == 1:
                middle = len(taken[0]) // 2
                segments = [taken[0][:middle], taken[0][middle:]] if middle else []
            if not segments:
                break
            length = min(length, sum(map(len, segments)))
            left = len(waiting)
            yield _Filling(segments, document, place, length, halves=len(taken) == 1), waiting
            place += len(taken) - (len(waiting) - left)


def _take(waiting: deque[Segment], rest: Iterator[Segment], length: int) -> list[Segment]:
    """Take sentences up to a number of tokens, or all."""
    taken: list[Segment] = []
    while sum(map(len, taken)) < length:
        sentence = waiting.popleft() if waiting else next(rest, None)
        if sentence is None:
            break
        taken.append(sentence)
    return taken


def _divide(filling: _Filling, generator: np.random.Generator) -> tuple[Segment, Sequence[Segment]]:
    """Return A, and the sentences that follow it."""
    at = int(generator.integers(1, len(filling.sentences)))
    return _joined(filling.sentences[:at]), filling.sentences[at:]


def _joined(sentences: Iterable[Segment]) -> Segment:
    return [token for sentence in sentences for token in sentence]


def _swapped_at_random(filling: _Filling, generator: np.random.Generator) -> _Pair:
    first, rest = _divide(filling, generator)
    second = _joined(rest)
    swapped = int(generator.random() < 0.5)
    return _Pair(second, first, 1) if swapped else _Pair(first, second, 0)


@dataclass
class Elsewhere:
    """Keeps some earlier fillings, to draw unrelated segments from."""

    generator: np.random.Generator
    remembered: list[_Filling] = field(default_factory=list)

    def pair(self, filling: _Filling, generator: np.random.Generator) -> _Pair:
        """Build a true pair, or one whose second segment is from elsewhere."""
        first, rest = _divide(filling, generator)
        other = None
        if generator.random() < 0.5:
            other = self._replaced(filling, first, rest, label=1)
        self.keep(filling)
        return other or _Pair(first, _joined(rest), 0)

    def structured_pair(self, filling: _Filling, generator: np.random.Generator) -> _Pair:
        """Build a true pair, a swapped one, or one whose second segment is from elsewhere."""
        first, rest = _divide(filling, generator)
        wanted = int(generator.integers(3))
        other = self._replaced(filling, first, rest, label=2) if wanted == 2 else None
        self.keep(filling)
        if other is not None:
            return other
        second = _joined(rest)
        return _Pair(second, first, 1) if wanted == 1 else _Pair(first, second, 0)

    def _replaced(
        self, filling: _Filling, first: Segment, rest: Sequence[Segment], label: int
    ) -> _Pair | None:
        """Return a pair of the first segment and another one, if there is one."""
        displaced = len(_joined(rest)) if filling.halves else filling.length - len(first)
        other = self._other(filling, displaced)
        if other is None:
            return None
        is_whole = sum(map(len, filling.sentences)) == filling.length
        draw = self._half if filling.halves else self._within if is_whole else self._segment
        second = draw(other.whole, displaced)
        return _Pair(first, second, label, unused=() if filling.halves else rest)

    def _other(self, filling: _Filling, displaced: int) -> _Filling | None:
        """Return an earlier filling, if possible from another document and long enough.

        A filling of the same document must end before this one, since displaced text is in two.
        """
        others = [each for each in self.remembered if each.document != filling.document] or [
            each for each in self.remembered if each.place + len(each.sentences) <= filling.place
        ]
        others = [each for each in others if each.length >= displaced] or others
        return others[int(self.generator.integers(len(others)))] if others else None

    def _segment(self, sentences: Sequence[Segment], length: int) -> Segment:
        """Return sentences up to a length, from a random start, if there are enough."""
        tails = [sentences[begin:] for begin in range(len(sentences))]
        enough = [tail for tail in tails if sum(map(len, tail)) >= length] or tails[:1]
        tail = enough[int(self.generator.integers(len(enough)))]
        return _joined(_take(deque(), iter(tail), length))

    def _within(self, sentences: Sequence[Segment], length: int) -> Segment:
        """Return the consecutive sentences that come next to a length, within it if possible."""
        places = [0, *accumulate(map(len, sentences))]
        runs = [range(start, end) for start, end in combinations(places, 2)]
        within = (run for run in runs if len(run) <= length)
        run = max(within, key=len, default=min(runs, key=len))
        return _joined(sentences)[run.start : run.stop]

    def _half(self, sentences: Sequence[Segment], length: int) -> Segment:
        """Return the end of a random sentence of more tokens, if there is one."""
        longer = [each for each in sentences if len(each) > length] or [_joined(sentences)]
        return longer[int(self.generator.integers(len(longer)))][-length:]

    def keep(self, filling: _Filling) -> None:
        """Keep a filling; when there are enough, it replaces a random one."""
        if len(self.remembered) < REMEMBERED_ROWS:
            self.remembered.append(filling)
        else:
            self.remembered[int(self.generator.integers(REMEMBERED_ROWS))] = filling
