"""Texts of the parity gate, and the batches that they are in: the cases.

They are chosen to show what batching breaks: a forgotten padding mask, a fixed batch or sequence
axis, truncation at another length. Besides the task's own texts there are some of one word, some
that must be truncated and, of one of those, its first tokens: alone and in batches of several
lengths, from [CLS] with nothing behind it but padding to the longest input.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertender.models.predictor import Classifier
from bertender.problems import Outputs
from bertender.text.batch import LONGEST_INPUT_BY_DEFAULT, NO_WORD, Batch, Tokenize
from bertender.text.example import Example

if TYPE_CHECKING:
    from bertender.training.examples import Padding

__all__ = ["Arrangement", "Case", "Question", "arrange", "ask", "questions_of"]

EDGE_TEXTS = 5
"""Texts of one word, and as many that must be truncated: several, as rounded activations of a deep
model may take a single text far, for a difference in the sixth digit."""
CUT_TOKENS = (1, 2, 7, 31, 127)
"""Where they are below the longest input. 1 is [CLS] alone, which no text is short enough for."""
CUT_ROWS = 4
"""Texts of a batch of several lengths: few, as one of them has the maximal length."""


@dataclass(frozen=True)
class Question:
    """A text that both models are asked about, or its first tokens."""

    example: Example
    tokens: int | None = None
    """How many of its first tokens are left; None for all."""
    separator: str = " | "
    """Between its strings where it is quoted."""

    def quote(self) -> str:
        """Return the text, shortened, and the rest of it."""
        text = self.separator.join(self.example)
        shown = repr(text if len(text) <= 80 else f"{text[:77]}...")
        return shown if self.tokens is None else f"the first {self.tokens} tokens of {shown}"


@dataclass(frozen=True)
class Case:
    """One arrangement of the questions: the batches, as indices of questions.

    An `edge` case holds a few texts: too few for a share or a mean.
    """

    name: str
    batches: tuple[tuple[int, ...], ...]
    edge: bool = False


@dataclass(frozen=True)
class Arrangement:
    """Layout of the candidate's batches."""

    batch_sizes: Sequence[int] = (1, 4, 32)
    """Of the batches over all examples, a case each."""
    seed: int = 0
    """The order of the examples, which decides who is padded next to whom."""


def questions_of(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> tuple[Question, ...]:
    """Return the questions: the examples; single words; over-long texts; the first of these, cut.

    Texts are cut where both models read tokens. An endpoint reads texts.
    """
    limits = [_longest_input(classifier) for classifier in (reference, candidate)]
    separator = reference.problem.separator
    one_word, too_long = _edges(reference, examples, max(limits) + 1)
    readable = all(_can_be_cut(classifier) for classifier in (reference, candidate))
    cut = [length for length in CUT_TOKENS if readable and length < min(limits)]
    whole = (*examples, *one_word, *too_long)
    return (
        *(Question(example, separator=separator) for example in whole),
        *(Question(too_long[0], length, separator) for length in cut),
    )


def _edges(
    reference: Classifier, examples: Sequence[Example], tokens: int
) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return texts of one word, and as many of more than so many tokens."""
    count = min(EDGE_TEXTS, len(examples))
    starts = [place * len(examples) // count for place in range(count)]
    turned = ([*examples[start:], *examples[:start]] for start in starts)
    edges = [reference.problem.edge_examples(each, tokens) for each in turned]
    return [short for short, _ in edges], [long for _, long in edges]


def arrange(examples: int, edges: int, cut: int, arrangement: Arrangement) -> tuple[Case, ...]:
    """Lay out the cases over the questions of `questions_of`.

    Args:
        examples: how many come first.
        edges: how many of one word come then, and as many over-long ones after these.
        cut: how many come last, cut to more and more tokens.
        arrangement: the sizes of batches, and the order of the examples.
    """
    batch_sizes = arrangement.batch_sizes
    order = np.random.default_rng(arrangement.seed).permutation(examples).tolist()
    one_word = range(examples, examples + edges)
    too_long = range(one_word.stop, one_word.stop + edges)
    lengths = list(range(too_long.stop, too_long.stop + cut))
    cases = [Case(f"batch of {size}", tuple(_chunks(order, size))) for size in batch_sizes]
    cases += [
        Case("one word, alone", tuple(_chunks(one_word, 1)), edge=True),
        Case("truncated, alone", tuple(_chunks(too_long, 1)), edge=True),
    ]
    if cut:
        cases.append(Case("cut to lengths, alone", tuple(_chunks(lengths, 1)), edge=True))
    if max(batch_sizes) > 1:
        pairs = tuple(zip(one_word, too_long, strict=True))
        cases.append(Case("one word beside truncated", pairs, edge=True))
    if cut and max(batch_sizes) > 1:
        batches = tuple(_with_shorter([*lengths, too_long[0]]))
        cases.append(Case("cut to lengths, beside shorter", batches, edge=True))
    return tuple(cases)


def ask(classifier: Classifier, questions: Sequence[Question]) -> list[Outputs]:
    """Return a model's outputs of some questions, as one batch.

    Raises:
        ModelError: the logits are of another shape than the batch's.
    """
    batch = classifier.encode([question.example for question in questions])
    if any(question.tokens is not None for question in questions):
        assert isinstance(classifier.encode, Tokenize)
        from bertender.training.examples import Padding  # it loads PyTorch

        padding = Padding.of(classifier.encode.tokenizer)
        batch = _cut(batch, [question.tokens for question in questions], padding)
    return classifier.outputs_of(batch)


def _cut(batch: Batch, limits: Sequence[int | None], padding: Padding) -> Batch:
    """Turn each row's tokens past its limit into padding, and drop columns of padding alone."""
    mask = batch.arrays["attention_mask"]  # (batch, seq)
    longest = mask.shape[1]
    left = np.array([longest if limit is None else limit for limit in limits])
    attended = (np.arange(longest) < left[:, None]) & (mask > 0)
    width = int(attended.sum(axis=1).max())
    arrays = {
        name: np.where(attended, array, padding.value(name) or 0)[:, :width]
        for name, array in batch.arrays.items()
    }
    words = None if batch.words is None else np.where(attended, batch.words, NO_WORD)[:, :width]
    return Batch(batch.examples, arrays, words)


def _with_shorter(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield, for each of the lengths in rising order, a batch of it, the least and others."""
    for place, longest in enumerate(lengths):
        shorter = itertools.cycle(lengths[: place + 1])
        yield (longest, *itertools.islice(shorter, CUT_ROWS - 1))


def _can_be_cut(classifier: Classifier) -> bool:
    """Return whether a model reads tokens, with [CLS] as the first of them."""
    encode = classifier.encode
    return isinstance(encode, Tokenize) and encode.tokenizer.padding_side == "right"


def _chunks(order: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(order), size):
        yield tuple(order[start : start + size])


def _longest_input(classifier: Classifier) -> int:
    encode = classifier.encode
    return encode.max_length if isinstance(encode, Tokenize) else LONGEST_INPUT_BY_DEFAULT
