"""Texts of the parity gate, and their arrangement in batches, the cases.

The texts are chosen to show faults of batching: a forgotten padding mask, a fixed batch or sequence
axis, truncation at another length. Besides the task's own texts there are texts of one word,
over-long texts, and prefixes of one of these: alone and in batches of several lengths, down to
[CLS] with nothing but padding up to the longest input.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertender.comparison.accuracy import word_count
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs
from bertender.text.batch import NO_WORD, Batch, Example, Tokenize
from bertender.text.tokenizer import LONGEST_INPUT_BY_DEFAULT, padding_of

EDGE_TEXTS = 5
"""Number of one-word texts, and of over-long texts: several, since rounded activations of a deep
model may move a single text far for a difference in the sixth digit."""
CUT_TOKENS = (1, 2, 7, 31, 127)
"""Lengths of prefixes, if below the longest input. 1 is only [CLS], shorter than any text."""
CUT_ROWS = 4
"""Texts in a batch of several lengths: few, as one of them has the maximal length."""
BATCH_SIZES = (1, 4, 32)
SHOWN_CHARACTERS = 80
ACCENTED = "\u00c9t\u00e9"
"""Two accents, on a capital and on a small letter."""


@dataclass(frozen=True)
class Question:
    """A text, or its first tokens, for both models."""

    example: Example
    tokens: int | None = None
    """Number of tokens to keep; None for all."""
    separator: str = " | "
    """Separator of its strings in quotes."""

    def quote(self) -> str:
        """Return the shortened text, and how many tokens of it were used."""
        shown = repr(shortened(self.separator.join(self.example)))
        return shown if self.tokens is None else f"the first {self.tokens} tokens of {shown}"


def shortened(text: str) -> str:
    """Return a text shortened to at most SHOWN_CHARACTERS."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


@dataclass(frozen=True)
class Case:
    """One arrangement of the questions: the batches, as indices of questions.

    An `edge` case has too few texts for a share or a mean.
    """

    name: str
    batches: tuple[tuple[int, ...], ...]
    edge: bool = False


def sampled_rows(examples: Sequence[Example], count: int, seed: int) -> list[int]:
    """Return the numbers of at most `count` examples, including the shortest and the longest."""
    if len(examples) <= count:
        return [*range(len(examples))]
    by_length = sorted(range(len(examples)), key=lambda index: word_count(examples[index]))
    between = np.random.default_rng(seed).choice(by_length[1:-1], max(count - 2, 0), replace=False)
    return sorted([by_length[0], by_length[-1], *between.tolist()][:count])


def questions_of(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> tuple[Question, ...]:
    """Return the questions: the examples; single words; over-long texts; prefixes of the first of
    these.

    Texts are cut if both models read tokens with [CLS] first.
    """
    encoders = [classifier.encode for classifier in (reference, candidate)]
    readable = [each for each in encoders if isinstance(each, Tokenize)]
    lengths = [each.max_length for each in readable]
    limits = [*lengths, *[LONGEST_INPUT_BY_DEFAULT] * (2 - len(lengths))]
    count = min(EDGE_TEXTS, len(examples))
    one_word, too_long = [], []
    for place in range(count):
        start = place * len(examples) // count
        turned = [*examples[start:], *examples[:start]]
        short, long = reference.problem.edge_examples(turned, max(limits) + 1)
        one_word.append(short)
        too_long.append(long)
    may_be_cut = len(readable) == 2 and all(
        each.tokenizer.padding_side == "right" for each in readable
    )
    separator = reference.problem.separator
    return (
        *(Question(each, None, separator) for each in (*examples, *one_word, *too_long)),
        *(
            Question(too_long[0], length, separator)
            for length in CUT_TOKENS
            if may_be_cut and length < min(limits)
        ),
    )


def arrange(
    examples: int, edges: int, cut: int, batch_sizes: Sequence[int] = BATCH_SIZES, seed: int = 0
) -> tuple[Case, ...]:
    """Arrange the questions of `questions_of` into cases.

    Args:
        examples: number of examples, which come first.
        edges: number of one-word texts, which come next, and of over-long texts after these.
        cut: number of prefixes, which come last, in rising length.
        batch_sizes: batch sizes over all examples, one case for each.
        seed: seed of the examples' order, which decides who is padded next to whom.
    """

    def batches(order: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(order[start : start + size]) for start in range(0, len(order), size))

    order = np.random.default_rng(seed).permutation(examples).tolist()
    one_word = range(examples, examples + edges)
    too_long = range(one_word.stop, one_word.stop + edges)
    lengths = list(range(too_long.stop, too_long.stop + cut))
    cases = [Case(f"batch of {size}", batches(order, size)) for size in batch_sizes]
    cases += [
        Case("one word, alone", batches(one_word, 1), edge=True),
        Case("truncated, alone", batches(too_long, 1), edge=True),
    ]
    if cut:
        cases.append(Case("cut to lengths, alone", batches(lengths, 1), edge=True))
    if max(batch_sizes) > 1:
        pairs = tuple(zip(one_word, too_long, strict=True))
        cases.append(Case("one word beside truncated", pairs, edge=True))
    if cut and max(batch_sizes) > 1:
        beside = []  # each prefix in rising order, with the shortest and others
        for place, longest in enumerate(rising := [*lengths, too_long[0]]):
            shorter = itertools.islice(itertools.cycle(rising[: place + 1]), CUT_ROWS - 1)
            beside.append((longest, *shorter))
        cases.append(Case("cut to lengths, beside shorter", tuple(beside), edge=True))
    return tuple(cases)


def ask(classifier: Classifier, questions: Sequence[Question]) -> list[Outputs]:
    """Return a model's outputs for some questions, as one batch.

    Raises:
        ModelError: the shape of the logits does not match the batch.
    """
    batch = classifier.encode([question.example for question in questions])
    if any(question.tokens is not None for question in questions):
        batch = _cut(classifier, batch, [question.tokens for question in questions])
    return classifier.outputs_of(batch)


def _cut(classifier: Classifier, batch: Batch, limits: Sequence[int | None]) -> Batch:
    """Replace each example's tokens past its limit by padding, and drop columns with only padding.

    Every row of an example with several rows is cut.
    """
    assert isinstance(classifier.encode, Tokenize)
    padding = padding_of(classifier.encode.tokenizer)
    mask = batch.arrays["attention_mask"]  # (rows, seq)
    longest = mask.shape[1]
    left = np.repeat([longest if limit is None else limit for limit in limits], batch.counts)
    attended = (np.arange(longest) < left[:, None]) & (mask > 0)
    width = int(attended.sum(axis=1).max())
    arrays = {
        name: np.where(attended, array, padding.value(name) or 0)[:, :width]
        for name, array in batch.arrays.items()
    }
    words = None if batch.words is None else np.where(attended, batch.words, NO_WORD)[:, :width]
    parts = None if batch.parts is None else np.where(attended, batch.parts, 0)[:, :width]
    return replace(batch, arrays=arrays, words=words, parts=parts)


def inputs_comparable(reference: Classifier, candidate: Classifier) -> bool:
    """Return whether both models read tokens of the same vocabulary."""
    first, second = reference.encode, candidate.encode
    if not (isinstance(first, Tokenize) and isinstance(second, Tokenize)):
        return False
    return bool(first.tokenizer.get_vocab() == second.tokenizer.get_vocab())


def input_problems(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> list[str]:
    """Return faults in the candidate's tokens; empty if tokens are not comparable.

    Truncation at another length, another case, a lost accent, swapped pairs and lost token types
    change few texts of a task or none: SST-2 is in lower case already. So texts are compared one by
    one, unpadded, before any logit, and once more in capitals.
    """
    if not (examples and inputs_comparable(reference, candidate)):
        return []
    capitals = tuple(f"{text.upper()} {ACCENTED}" for text in examples[0])
    wrong = [
        (example, name)
        for example in (*examples, capitals)
        if (name := _first_difference(reference, candidate, example))
    ]
    if not wrong:
        return []
    example, name = wrong[0]
    text = shortened(reference.problem.separator.join(example))
    return [
        f"inputs: {name} of {len(wrong)} of {len(examples) + 1} texts are not the reference's, "
        f"allowed 0: another tokenizer, truncation or order of texts; first: {text!r}"
    ]


def _first_difference(reference: Classifier, candidate: Classifier, example: Example) -> str | None:
    """Return the name of the first differing input."""
    expected, actual = (each.encode([example]).arrays for each in (reference, candidate))
    for name, array in expected.items():
        # models without token types can read texts that have them
        if not np.array_equal(array, actual.get(name, np.zeros_like(array))):
            return name
    return None
