"""Texts of the parity gate, the batches that they are in, and both models asked about them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.core.progress import Bar, progress_bar
from bertender.gate.figures import NOBODY, FloatArray, IntArray, PairedLogits
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs
from bertender.text.batch import NO_WORD, Batch, Example, Tokenize
from bertender.text.tokenizer import LONGEST_INPUT_BY_DEFAULT

if TYPE_CHECKING:
    from bertender.training.examples import Padding

# --- from bertender.measure.parity_cases
# Texts of the parity gate, and the batches that they are in: the cases.
#
# They are chosen to show what batching breaks: a forgotten padding mask, a fixed batch or
# sequence
# axis, truncation at another length. Besides the task's own texts there are some of one word,
# some
# that must be truncated and, of one of those, its first tokens: alone and in batches of several
# lengths, from [CLS] with nothing behind it but padding to the longest input.

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
        from bertender.training.examples import Padding

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


# --- from bertender.measure.pairing
# Run a reference and a candidate on the same texts, and pair their logits.

LEAST_SPREAD = 0.05
"""Of the root mean square of the centred logits."""
LEAST_SPREAD_LOGITS = 0.05
"""In logits. Where two move in opposite directions, each by a fifth of it, as the median text of 8
bits may, a probability changes by half a hundredth at most: p (1 - p) times the 0.02 by which their
distance changes."""


def pair_logits(
    reference: Classifier,
    candidate: Classifier,
    examples: Sequence[Example],
    arrangement: Arrangement,
) -> PairedLogits:
    """Ask both classifiers; the reference one text at a time, the candidate in every case.

    Whatever makes rows incomparable (an error of the candidate, a wrong shape, NaN) is described
    in `problems`, and the rows are left out.
    """
    texts = questions_of(reference, candidate, examples)
    cut = sum(text.tokens is not None for text in texts)
    edges = (len(texts) - len(examples) - cut) // 2
    cases = arrange(len(examples), edges, cut, arrangement)
    problems: list[str] = []
    with progress_bar(f"parity {candidate.name}", _times_asked(texts, cases)) as bar:
        known = _Known(reference, texts, _ask_reference(reference, texts, bar), len(examples))
        replies = [
            _Reply(number, *reply)
            for number, case in enumerate(cases)
            for reply in _ask_candidate(candidate, known, case, bar, problems)
        ]
    return _side_by_side(known, cases, replies, problems)


def _times_asked(texts: Sequence[Question], cases: Sequence[Case]) -> int:
    """Return how many texts both models are asked about, each as often as it is asked."""
    return len(texts) + sum(len(batch) for case in cases for batch in case.batches)


class _Reply(NamedTuple):
    """The candidate's logits (rows, labels) of a text, by the numbers of case and text."""

    case: int
    text: int
    logits: npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Known:
    """The reference's outputs for each text; those of the task come first."""

    reference: Classifier
    texts: tuple[Question, ...]
    outputs: Sequence[Outputs]
    examples: int
    """How many texts are of the task."""

    @cached_property
    def logits(self) -> FloatArray:
        """All its logits (rows, labels)."""
        return self.below([each.logits for each in self.outputs])

    @property
    def scale(self) -> float:
        """The largest absolute logit."""
        logits = self.logits
        return float(np.abs(logits[np.isfinite(logits)]).max(initial=0.0))

    @property
    def size_and_spread(self) -> tuple[float, float]:
        """How large the logits of the task's texts are, and how far they spread over them."""
        of_texts = self.below([each.logits for each in self.outputs[: self.examples]])
        return _size_and_spread(self.reference.problem.probable, of_texts)

    def below(self, parts: Sequence[npt.NDArray[Any]]) -> FloatArray:
        """Return logits below one another, (rows, labels); no rows where there are no parts."""
        nothing = np.empty((0, len(self.reference.labels)))
        return np.asarray(np.concatenate([nothing, *parts]), dtype=np.float64)

    def problems(self) -> list[str]:
        """Return how many of its predictions are not finite, in words."""
        rows = zip(self.texts, self.outputs, strict=True)
        owners = [text for text, own in rows for _ in own.places]
        return _non_finite("reference", self.logits, owners)


def _side_by_side(
    known: _Known, cases: tuple[Case, ...], replies: Sequence[_Reply], problems: Sequence[str]
) -> PairedLogits:
    """Return all outputs of both models, row by row, without what is not finite."""
    own = [known.outputs[reply.text] for reply in replies]
    expected = known.below([each.logits for each in own])
    actual = known.below([reply.logits for reply in replies])
    text_ids = _of_rows([reply.text for reply in replies], replies)
    asked = [known.texts[text] for text in text_ids]
    finite = np.isfinite(expected).all(axis=1) & np.isfinite(actual).all(axis=1)
    size, spread = known.size_and_spread
    return PairedLogits(
        texts=known.texts,
        cases=cases,
        text_ids=text_ids[finite],
        case_ids=_of_rows([reply.case for reply in replies], replies)[finite],
        expected=expected[finite],
        actual=actual[finite],
        scale=known.scale,
        spread=spread,
        size=size,
        problems=(*problems, *known.problems(), *_non_finite("candidate", actual, asked)),
        places=np.concatenate([NOBODY, *(each.places for each in own)])[finite],
        problem=known.reference.problem,
    )


def _of_rows(numbers: Sequence[int], replies: Sequence[_Reply]) -> IntArray:
    """Return a number of each reply for each of its rows (rows,)."""
    return np.repeat(np.array(numbers, dtype=np.int64), [len(reply.logits) for reply in replies])


def _size_and_spread(
    probable: Callable[[FloatArray], FloatArray], logits: FloatArray
) -> tuple[float, float]:
    """Return the size of finite logits (texts, labels), and their spread over texts; 0 of none.

    Of a model that hardly distinguishes texts, the spread is a share of the logits, or what hardly
    changes a probability: what rounding adds to so little decides nothing.
    """
    finite = probable(logits[np.isfinite(logits).all(axis=1)])
    if not len(finite):
        return 0.0, 0.0
    average = float(np.sqrt(np.square(finite.mean(axis=0)).mean()))
    spread = float(np.sqrt(finite.var(axis=0).mean()))
    spread = max(spread, LEAST_SPREAD * float(np.hypot(average, spread)), LEAST_SPREAD_LOGITS)
    return average + spread, spread


def _ask_reference(reference: Classifier, texts: Sequence[Question], bar: Bar) -> list[Outputs]:
    outputs = []
    for text in texts:
        outputs += ask(reference, [text])
        bar.advance()
    return outputs


def _ask_candidate(
    candidate: Classifier, known: _Known, case: Case, bar: Bar, problems: list[str]
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield (text, logits (rows, labels)) of a case; the first problem is noted and ends it."""
    for batch in case.batches:
        try:
            outputs = ask(candidate, [known.texts[index] for index in batch])
            wanted = [known.outputs[index].places for index in batch]
            logits = [_at(own, places) for own, places in zip(outputs, wanted, strict=True)]
        except Exception as error:  # runtimes share no base class, and all failures are reported
            problems.append(f"{case.name}: the candidate failed with {_first_line(error)}")
            return
        yield from zip(batch, logits, strict=True)
        bar.advance(len(batch))


def _at(outputs: Outputs, places: IntArray) -> npt.NDArray[np.float32]:
    """Return the logits at the places that the reference predicts at.

    Raises:
        ModelError: there are none at one of them.
    """
    if np.array_equal(outputs.places, places):
        return outputs.logits
    rows = {place: row for row, place in enumerate(outputs.places.tolist())}
    if missing := [place for place in places.tolist() if place not in rows]:
        raise ModelError(f"no prediction for word {missing[0] + 1}, which its reference predicts")
    return outputs.logits[[rows[place] for place in places.tolist()]]


def _non_finite(who: str, logits: FloatArray, texts: Sequence[Question]) -> list[str]:
    """Return how many predictions are not finite; `texts` are those of the logits' rows."""
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    if not broken:
        return []
    return [
        f"{who} logits are NaN or infinite in {len(broken)} of {len(logits)} predictions, "
        f"allowed 0; first: {texts[broken[0]].quote()}"
    ]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


# --- from bertender.measure.parity_inputs
# Check that both models read the same tokens: tokenizers are compared before any logit.
#
# Truncation at another length, another case or a lost accent, swapped pairs and lost token types
# change few texts of a task, or none of them: SST-2 is in lower case already.

ACCENTED = "\u00c9t\u00e9"
"""Two accents, of a capital and of a small letter."""


def input_problems(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> list[str]:
    """Return what is wrong with the candidate's tokens; nothing where tokens are not comparable.

    They are where both read tokens of one vocabulary. Texts are compared one by one, unpadded,
    and once more in capitals.
    """
    if not (examples and inputs_comparable(reference, candidate)):
        return []
    wrong = list(_differing(reference, candidate, [*examples, _capitals(examples[0])]))
    if not wrong:
        return []
    example, name = wrong[0]
    text = reference.problem.separator.join(example)
    return [
        f"inputs: {name} of {len(wrong)} of {len(examples) + 1} texts are not the reference's, "
        f"allowed 0: another tokenizer, truncation or order of texts; first: "
        f"{(text if len(text) <= 80 else text[:77] + '...')!r}"
    ]


def inputs_comparable(reference: Classifier, candidate: Classifier) -> bool:
    """Return whether both read tokens of one vocabulary."""
    first, second = reference.encode, candidate.encode
    if not (isinstance(first, Tokenize) and isinstance(second, Tokenize)):
        return False
    return bool(first.tokenizer.get_vocab() == second.tokenizer.get_vocab())


def _differing(
    reference: Classifier, candidate: Classifier, examples: Sequence[Example]
) -> Iterator[tuple[Example, str]]:
    """Yield each example that is read otherwise, with the name of the first input that differs."""
    for example in examples:
        expected, actual = (each.encode([example]).arrays for each in (reference, candidate))
        for name, array in expected.items():
            # models without token types read texts that have them none the less
            other = actual.get(name, np.zeros_like(array))
            if not np.array_equal(array, other):
                yield example, name
                break


def _capitals(example: Example) -> Example:
    return tuple(f"{text.upper()} {ACCENTED}" for text in example)
