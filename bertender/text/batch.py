"""Examples, token batches, and the plan of batches of similar length.

No tokenizer library is imported, since clients of an endpoint do not need one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError, ModelError
from bertender.text.tokenizer import (
    ALWAYS,
    Cut,
    FileTokenizer,
    Padding,
    TokenArrays,
    continued_labels,
    longest_first,
    longest_input,
    only_first,
    pair_arrays,
    part_starts,
)

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import BatchEncoding, PreTrainedTokenizerBase


IntArray = npt.NDArray[np.int64]
Item = TypeVar("Item")

Example = tuple[str, ...]
"""The texts of an example: one, or two for a pair; in a task that labels words, the words."""

INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))
"""Unicode categories of spaces, control and format characters (with zero-width ones)."""
FILLERS = frozenset(
    ("\u034f", "\u115f", "\u1160", "\u2800", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10)))
)
"""Invisible characters of other categories: joiners, blanks, variation selectors."""
LONGEST_SHOWN = 80
"""Most characters of a value in a message."""

EXAMPLES_PER_COUNT = 1000
NO_WORD = -1
"""Marks a token that begins no word: a later token of a word, a special token, or padding."""


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character."""
    return all(
        character in FILLERS or unicodedata.category(character) in INVISIBLE for character in text
    )


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last one may be shorter."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def to_examples(values: object) -> list[Example]:
    """Return texts, and tuples or lists of texts, as examples; a single text is a tuple of one.

    Raises:
        DataError: `values` is a single text or not a list; or a row is neither a text nor a tuple
            of texts.
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
    if not isinstance(value, tuple | list):
        raise DataError(f"row {row} is {_shown(value)}. {_advice(value)}")
    for part in value:
        if not isinstance(part, str):
            raise DataError(f"row {row} has {_shown(part)} among its texts. {_advice(part)}")
    return tuple(value)


def _advice(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return "Decode it: value.decode()."
    return "Give a text, or a tuple of two for a pair."


def _shown(value: object) -> str:
    """Return a value and its type for a message."""
    text = repr(value)
    short = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return short if value is None else f"{short} ({type(value).__name__})"


@dataclass(frozen=True)
class Batch:
    """Examples as a model takes them: token arrays (rows, seq), and their texts."""

    examples: tuple[Example, ...]
    arrays: Mapping[str, IntArray]
    words: IntArray | None = None
    """(rows, seq), for models with logits per token: the number of the word that a token begins, or
    the span of its characters (`bertender.text.windows`); else NO_WORD."""
    truncated: npt.NDArray[np.bool_] | None = None
    """(examples,): whether the example was longer than the model's input; None if none is cut."""
    owners: IntArray | None = None
    """(rows,): number of each row's example, ascending; None where each example has one row."""
    parts: IntArray | None = None
    """(rows, seq), where words are split into parts: the offset in the word at a token that begins
    a later part, else 0."""

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def counts(self) -> list[int]:
        """Number of rows of each example."""
        if self.owners is None:
            return [1] * len(self)
        counts: list[int] = np.bincount(self.owners, minlength=len(self)).tolist()
        return counts

    def example_of(self, row: int) -> Example:
        """Return the example of a row."""
        return self.examples[row if self.owners is None else self.owners[row]]

    def by_example(self, of_rows: Sequence[Item]) -> list[Sequence[Item]]:
        """Group items, one per row, by example."""
        ends = [*accumulate(self.counts)]
        return [of_rows[start:end] for start, end in pairwise((0, *ends))]

    def lengths(self) -> list[int]:
        """Return the token count of each example's longest row."""
        tokens = self.arrays["attention_mask"].sum(axis=1).tolist()
        return [max(own) for own in self.by_example(tokens)]


def cut_examples(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return which examples (batch,) were longer than the model's input."""
    return np.zeros(len(batch), dtype=np.bool_) if batch.truncated is None else batch.truncated


def merged(rows: Sequence[tuple[Batch, int]], padding: Padding) -> Batch:
    """Merge rows of several batches into one batch, padded to its longest row; a row is an example.

    Args:
        rows: batches, with the number of a row in each.
        padding: padding of the tokenizer.
    """
    first = rows[0][0]
    if all(batch is first for batch, _ in rows):
        return rows_of(first, [row for _, row in rows])
    places = [batch.arrays["attention_mask"][row].astype(bool) for batch, row in rows]
    lengths = [int(place.sum()) for place in places]
    longest = max(lengths)
    on_the_left = padding.side == "left"
    spans = [
        slice(longest - length, longest) if on_the_left else slice(length) for length in lengths
    ]

    def padded(arrays: Sequence[IntArray], value: int) -> IntArray:
        array = np.full((len(arrays), longest), value, dtype=np.int64)
        for row, (own, place, span) in enumerate(zip(arrays, places, spans, strict=True)):
            array[row, span] = own[place]
        return array

    words, parts = None, None
    if first.words is not None:
        words = padded(
            [batch.words[row] for batch, row in rows if batch.words is not None], NO_WORD
        )
    if first.parts is not None:
        parts = padded([batch.parts[row] for batch, row in rows if batch.parts is not None], 0)
    return Batch(
        tuple(batch.example_of(row) for batch, row in rows),
        {
            name: padded([batch.arrays[name][row] for batch, row in rows], padding.value(name) or 0)
            for name in first.arrays
        },
        words,
        parts=parts,
    )


def rows_of(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some rows of a batch, each as an example, without columns of only padding."""
    used = batch.arrays["attention_mask"][rows].any(axis=0)
    return Batch(
        tuple(map(batch.example_of, rows)),
        {name: array[rows][:, used] for name, array in batch.arrays.items()},
        None if batch.words is None else batch.words[rows][:, used],
        parts=None if batch.parts is None else batch.parts[rows][:, used],
    )


class Encode(Protocol):
    """A function that encodes examples to a batch."""

    def __call__(self, examples: Sequence[Example]) -> Batch: ...


class Tokenize:
    """Encode with a tokenizer, padded to the longest example of the batch."""

    cuts = True
    """Whether longer examples are cut; else they have several rows."""
    cut: Cut = staticmethod(longest_first)
    """Which text of a pair is cut."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> None:
        self.tokenizer: Any = tokenizer  # of transformers, where more than tokens is needed
        self.max_length = min(max_length or longest_input(tokenizer), longest_input(tokenizer))

    def __call__(self, examples: Sequence[Example]) -> Batch:
        known = tuple(to_examples(examples))
        rows = [*map(self.own_rows, known)]
        arrays = self._tokens(
            [list(column) for column in zip(*chain.from_iterable(rows), strict=True)]
        )
        owners, cut = owners_of(rows), truncated_rows(arrays)
        return Batch(
            known,
            {name: np.asarray(array, dtype=np.int64) for name, array in arrays.items()},
            truncated=None if cut is None else np.bincount(owners, cut, minlength=len(known)) > 0,
            owners=owners,
        )

    def own_rows(self, example: Example) -> list[Example]:
        """Return the texts of each row of an example."""
        return [example]

    def _tokens(self, columns: Sequence[list[str]]) -> BatchEncoding | TokenArrays:
        is_fast = bool(getattr(self.tokenizer, "is_fast", False))  # a FileTokenizer has none
        if len(columns) > 1 and is_fast and self.tokenizer.pad_token_id is not None:
            return pair_arrays(self.tokenizer, columns, self.max_length, self.cut)
        settings: dict[str, Any] = {"max_length": self.max_length, **ALWAYS}
        if isinstance(self.tokenizer, FileTokenizer):
            return self.tokenizer(*columns, cut=self.cut, **settings)
        if len(columns) > 1:
            settings["truncation"] = self.cut.__name__
        tokens: BatchEncoding = self.tokenizer(*columns, **settings)
        return tokens

    def counts(self, examples: Sequence[Example]) -> list[int]:
        """Return the token count of each example's longest row without truncation.

        The tokenizer must be a transformers tokenizer.
        """
        rows = [*map(self.own_rows, examples)]
        uncut = map(self._uncut, batched(chain.from_iterable(rows), EXAMPLES_PER_COUNT))
        lengths = map(len, chain.from_iterable(uncut))
        return [max(islice(lengths, len(own))) for own in rows]

    def encodings(self, examples: Sequence[Example]) -> Iterator[Encoding]:
        """Yield all tokens of each text or pair, with their offsets.

        Raises:
            ModelError: a slow tokenizer has no offsets.
        """
        for some in batched(examples, EXAMPLES_PER_COUNT):
            columns = [list(column) for column in zip(*some, strict=True)]
            if isinstance(self.tokenizer, FileTokenizer):
                texts = columns[0] if len(columns) == 1 else list(some)
                yield from self.tokenizer.tokenizer.encode_batch(texts)
                continue
            if not self.tokenizer.is_fast:
                raise ModelError(
                    f"the tokenizer {type(self.tokenizer).__name__} does not say where its tokens "
                    "stand in a text, which windows are made by. Give a model with a "
                    "tokenizer.json."
                )
            tokens = self.tokenizer(*columns, truncation=False, padding=False, verbose=False)
            yield from tokens.encodings

    def reads(self, name: str) -> bool:
        """Return whether the model reads a token column; a FileTokenizer returns all columns."""
        return name in getattr(self.tokenizer, "model_input_names", (name,))

    def _uncut(self, examples: Sequence[Example]) -> list[list[int]]:
        columns = [list(column) for column in zip(*examples, strict=True)]
        ids: list[list[int]] = self.tokenizer(*columns, verbose=False)["input_ids"]
        return ids


class TokenizeEach(Tokenize):
    """Encode each text of an example separately, as its own row."""

    def own_rows(self, example: Example) -> list[Example]:
        return [(text,) for text in example]


def owners_of(examples: Sequence[Sized]) -> IntArray:
    """Return the number of each row's example, given the rows of each example."""
    return np.repeat(np.arange(len(examples)), [len(each) for each in examples])


class TokenizeChoices(Tokenize):
    """Encode questions with their choices: a row for each pair of a question and a choice.

    If a pair is too long, the question is cut and the choice kept.
    """

    cut = staticmethod(only_first)

    def own_rows(self, example: Example) -> list[Example]:
        question, *choices = example
        return [(question, choice) for choice in choices]


class TokenizePassages(TokenizeChoices):
    """Encode queries with their passages: a row for each pair, with the longer text cut."""

    cut = staticmethod(longest_first)


def truncated_rows(tokens: BatchEncoding | TokenArrays) -> npt.NDArray[np.bool_] | None:
    """Return which texts (batch,) were cut; None for slow tokenizers, which do not report it."""
    if tokens.encodings is None:
        return None
    return np.array([bool(each.overflowing) for each in tokens.encodings])


def keep_text(examples: Sequence[Example]) -> Batch:
    """Encode for models that read texts (the bag of words, a served endpoint)."""
    return Batch(tuple(to_examples(examples)), {})


class TokenizeWords(Tokenize):
    """Encode sentences that are split into words; the batch marks the first token of each word.

    That token predicts the word's label; other tokens predict nothing.
    """

    def __call__(self, examples: Sequence[Example]) -> Batch:
        sentences = _to_sentences(examples)
        tokens, begun = encode_words(
            self.tokenizer, sentences, self.max_length, padding=True, return_tensors="np"
        )
        arrays = {name: np.asarray(array, dtype=np.int64) for name, array in tokens.items()}
        places = np.array([[each or NO_BEGUN for each in row] for row in begun])  # (batch, seq, 2)
        words, parts = places[..., 0], places[..., 1]
        if continued_labels(self.tokenizer) is None:
            return Batch(sentences, arrays, words, truncated_rows(tokens))
        words = np.where(parts > 0, NO_WORD, words)
        return Batch(sentences, arrays, words, truncated_rows(tokens), parts=parts)

    def _uncut(self, examples: Sequence[Example]) -> list[list[int]]:
        sentences, _ = _split_into_parts(self.tokenizer, examples)
        tokens = self.tokenizer(sentences, is_split_into_words=True, verbose=False)
        ids: list[list[int]] = tokens["input_ids"]
        return ids


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Example],
    max_length: int | None = None,
    **settings: Any,
) -> tuple[BatchEncoding, list[list[Begun | None]]]:
    """Tokenise sentences that are split into words; return also the word that each token begins.

    Words are split into parts where the tokenizer's settings say so; see `tokenizer`.

    Args:
        tokenizer: a fast tokenizer, which has the word of each token (`word_ids`).
        sentences: words of each sentence.
        max_length: most tokens of a sentence; by default, and at most, the tokenizer's limit.
        settings: more settings of the tokenizer (padding, kind of tensors).
    """
    texts, parts = _split_into_parts(tokenizer, sentences)
    tokens: BatchEncoding = tokenizer(
        texts,
        is_split_into_words=True,
        truncation=True,
        max_length=min(max_length or longest_input(tokenizer), longest_input(tokenizer)),
        **settings,
    )
    return tokens, [_begun_parts(tokens.word_ids(row), own) for row, own in enumerate(parts)]


class Begun(NamedTuple):
    """The word, or the later part of a word, that a token begins."""

    word: int
    """Number of the word."""
    offset: int
    """Offset in the word, in characters; 0 where the word itself begins."""


NO_BEGUN = Begun(NO_WORD, 0)


def _split_into_parts(
    tokenizer: Any, sentences: Sequence[Example]
) -> tuple[list[list[str]], list[list[Begun]]]:
    """Split the words of sentences into the tokenizer's parts; return also where each begins."""
    if continued_labels(tokenizer) is None:
        whole = [[Begun(word, 0) for word in range(len(each))] for each in sentences]
        return [list(each) for each in sentences], whole
    texts, parts = [], []
    for sentence in sentences:
        own_texts, own_parts = [], []
        for number, word in enumerate(sentence):
            starts = part_starts(word)
            own_texts += [word[start:end] for start, end in pairwise((*starts, len(word)))]
            own_parts += [Begun(number, start) for start in starts]
        texts.append(own_texts)
        parts.append(own_parts)
    return texts, parts


def _begun_parts(part_ids: Sequence[int | None], parts: Sequence[Begun]) -> list[Begun | None]:
    """Return the part that each token begins; None for other tokens and special tokens.

    The first token of a word begins the word, even if it is of a later part, since a tokenizer may
    drop the characters of a part.
    """
    found: list[Begun | None] = []
    last = NO_WORD
    for before, part in pairwise((None, *part_ids)):
        if part is None or part == before:
            found.append(None)
            continue
        begun = parts[part]
        found.append(begun if begun.word == last else Begun(begun.word, 0))
        last = begun.word
    return found


def tokens_of_words(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Return the token ids of each word, without special tokens or truncation.

    Args:
        tokenizer: a fast tokenizer, which has the word of each token.
        sentences: words of each sentence.
    """
    tokens = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        add_special_tokens=False,
        verbose=False,  # no warning about inputs that are too long for the model
    )
    by_sentence: list[list[list[int]]] = [[[] for _ in sentence] for sentence in sentences]
    for row, words in enumerate(by_sentence):
        for token, word in zip(tokens["input_ids"][row], tokens.word_ids(row), strict=True):
            assert word is not None  # only special tokens have no word
            words[word].append(token)
    return by_sentence


def keep_words(examples: Sequence[Example]) -> Batch:
    """Encode for a served endpoint, which reads words and predicts a label for each."""
    sentences = _to_sentences(examples)
    longest = max(map(len, sentences))
    words = [[*range(len(each)), *[NO_WORD] * (longest - len(each))] for each in sentences]
    return Batch(sentences, {}, np.array(words))


def _to_sentences(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Return sentences of words; a sentence given as a text is split."""
    known = to_examples(examples)
    return tuple(
        tuple(given.split()) if isinstance(given, str) else example
        for given, example in zip(examples, known, strict=True)
    )


@dataclass(frozen=True)
class BatchOrder:
    """An order of batches. Examples are sorted by length within random pools.

    Sorting all examples would make the same batches in every epoch; pools of one batch make random
    batches.
    """

    batches: int | None
    """Approximate number of batches in a pool; None where the settings have it."""
    in_turn: bool = False
    """Whether pools follow each other, with batches shuffled inside a pool, so that every run of so
    many steps has all lengths. Else all batches of the epoch are shuffled."""


BATCH_ORDERS: Mapping[str, BatchOrder] = {
    "sorted": BatchOrder(50),
    "random": BatchOrder(1),
    "pooled": BatchOrder(None, in_turn=True),
}


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a batch over all processes."""

    batch_size: int
    """Most examples."""
    tokens_per_batch: int
    """Most tokens of all rows, with padding."""
    processes: int = 1
    """Every batch size is a multiple of this, for equal shares of all processes. For that, fewer
    than `processes` examples may be repeated in the last batch of an epoch."""


@dataclass(frozen=True)
class BatchPlan:
    """All batches of a training run, in order, as indices of examples.

    The whole run is planned before it starts: a resumed run continues at a position in this list,
    and each of several processes takes its share of every batch.
    """

    batches: tuple[tuple[int, ...], ...]
    epoch_ends: tuple[int, ...]
    """Number of batches at the end of each epoch, cumulative."""

    def __len__(self) -> int:
        return len(self.batches)

    def first(self, steps: int) -> BatchPlan:
        """Return the plan of the first `steps` batches; the last epoch may be incomplete."""
        batches = self.batches[:steps]
        whole = tuple(end for end in self.epoch_ends if end < len(batches))
        return BatchPlan(batches, (*whole, len(batches)))


def length_buckets(
    lengths: Sequence[int],
    tokens_per_batch: int,
    batch_size: int | None = None,
    multiple: int = 1,
    rows: Callable[[int], int] = int,
    counts: Sequence[int] | None = None,
) -> list[list[int]]:
    """Cut the examples, sorted by length, into batches that fit the budget.

    Args:
        lengths: tokens of each example's longest row.
        tokens_per_batch: most tokens of a batch, with padding; a longer example is its own batch.
        batch_size: most examples of a batch; None for no limit.
        multiple: batches grow by so many examples at a time, so that only the last batch may not be
            divisible by it, and has room; so many examples always fit.
        rows: number of rows -> number of rows after padding the batch.
        counts: rows of each example; None for one.

    Returns:
        Batches of indices into `lengths`, shortest examples first; each index exactly once.
    """
    order = np.argsort(np.asarray(lengths), kind="stable").tolist()
    batches: list[list[int]] = []
    in_batch = 0  # rows of the last batch
    for start in range(0, len(order), multiple):
        group = order[start : start + multiple]
        size = len(batches[-1]) + multiple if batches else 0
        own = multiple if counts is None else sum(counts[index] for index in group)
        # sorted by length, so the newest example is the longest in its batch
        fits = bool(batches) and lengths[group[-1]] * rows(in_batch + own) <= tokens_per_batch
        if fits and (batch_size is None or size <= batch_size):
            batches[-1] += group
            in_batch += own
        else:
            batches.append(group)
            in_batch = own
    return batches


def plan_batches(
    lengths: Sequence[int],
    limits: BatchLimits,
    order: BatchOrder = BATCH_ORDERS["sorted"],
    *,
    epochs: int,
    seed: int,
    groups: Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
) -> BatchPlan:
    """Plan a run: length-bucketed batches in random order, new in every epoch.

    Args:
        lengths: tokens of each example's longest row.
        limits: limits of a batch.
        order: order of the batches, with an explicit number of batches in a pool. Where pools
            follow each other, each has examples of all groups, by their sizes.
        epochs: passes over the examples.
        seed: seed of the order.
        groups: group number of each example; a batch has one group. The batches of all groups are
            shuffled together, so that steps are proportional to group sizes (MT-DNN, arXiv
            1901.11504, Algorithm 1). None puts all examples in one group.
        counts: rows of each example; None for one.
    """
    group_of = groups or [0] * len(lengths)
    by_group: dict[int, list[int]] = {number: [] for number in sorted(set(group_of))}
    for index, number in enumerate(group_of):
        by_group[number].append(index)
    members = list(by_group.values())
    bounded = Bounded(lengths, limits, counts)
    epoch_of = _pools_in_turn if order.in_turn else _pools_shuffled
    assert order.batches is not None
    batches: list[tuple[int, ...]] = []
    epoch_ends = []
    for epoch in range(epochs):
        generator = np.random.default_rng((seed, epoch))
        batches += map(tuple, epoch_of(bounded, members, order.batches, generator))
        epoch_ends.append(len(batches))
    return BatchPlan(tuple(batches), tuple(epoch_ends))


@dataclass(frozen=True)
class Bounded:
    """Lengths of examples, and the limits of their batches."""

    lengths: Sequence[int]
    limits: BatchLimits
    counts: Sequence[int] | None = None

    def batches(self, pool: Sequence[int]) -> list[list[int]]:
        """Return the batches of a pool of examples, sorted by length."""
        most, processes = self.limits, self.limits.processes
        lengths = [self.lengths[index] for index in pool]
        counts = self.counts and [self.counts[index] for index in pool]
        buckets = length_buckets(
            lengths, most.tokens_per_batch, most.batch_size, processes, counts=counts
        )
        batches = [[int(pool[place]) for place in bucket] for bucket in buckets]
        # the first examples of a batch are repeated until it divides by the number of processes
        return [
            [batch[index % len(batch)] for index in range(len(batch) + -len(batch) % processes)]
            for batch in batches
        ]


def _pools_shuffled(
    bounded: Bounded,
    members: Sequence[Sequence[int]],
    batches_per_pool: int,
    generator: np.random.Generator,
) -> list[list[int]]:
    """Return an epoch with all batches shuffled together; a pool has one group."""
    pool_size = bounded.limits.batch_size * batches_per_pool
    pool_size += -pool_size % bounded.limits.processes
    batches = []
    for group in members:
        order = np.asarray(group)[generator.permutation(len(group))].tolist()
        for start in range(0, len(order), pool_size):
            batches += bounded.batches(order[start : start + pool_size])
    return _shuffled(batches, generator)


def _pools_in_turn(
    bounded: Bounded,
    members: Sequence[Sequence[int]],
    batches_per_pool: int,
    generator: np.random.Generator,
) -> list[list[int]]:
    """Return an epoch of one pool after another, with batches shuffled inside each."""
    counts = [len(bounded.batches(group)) for group in members]
    pools: list[list[list[int]]] = [
        [] for _ in range(max(1, round(sum(counts) / batches_per_pool)))
    ]
    for group, count in zip(members, counts, strict=True):
        order = np.asarray(group)[generator.permutation(len(group))].tolist()
        parts = _parts(order, count, min(count, len(pools)), bounded.limits.processes)
        places = generator.permutation(len(pools))[: len(parts)].tolist()
        for place, part in zip(places, parts, strict=True):
            pools[place] += bounded.batches(part)
    return [batch for pool in pools for batch in _shuffled(pool, generator)]


def _parts(order: list[int], batches: int, count: int, multiple: int) -> list[list[int]]:
    """Cut examples into `count` parts with about equal numbers of whole batches."""
    size = -(-len(order) // batches)
    size += -size % multiple
    whole = -(-len(order) // size)
    ends = [whole * part // count * size for part in range(count + 1)]
    parts = [order[start:end] for start, end in pairwise(ends)]
    return [part for part in parts if part]


def _shuffled(batches: list[list[int]], generator: np.random.Generator) -> list[list[int]]:
    return [batches[index] for index in generator.permutation(len(batches))]
