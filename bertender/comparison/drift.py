"""Drift: whether recent texts are like a model's task.

Four measures are compared, each from 0 to 1, the share of texts that would have to change: the
model's confidence, the tokens of a text, the share of unknown or rare tokens, and the predicted
labels or numbers, of each head. Numbers and ranks are tested by Kolmogorov and Smirnov's two-sample
test, whose statistic is the largest difference of the cumulative shares; labels are tested by
chi-squared, with half the sum of the differences of their shares. Several labels of a text, as of
its words, are not independent: Rao and Scott's second-order correction (1981, JASA 76) counts texts
instead of labels. Words outside of entities count nothing, as they would hide a change of the
others.

A model is more confident on texts that it has learned from, so the reference is the validation
texts, or the held-out texts if there are none. Rare tokens are those that are rare in the training
texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.comparison.accuracy import TOKENS_PER_BATCH, predict_outputs, word_count
from bertender.core.artifact import Artifact
from bertender.core.card import LeftOutRows
from bertender.core.config import Config, Record
from bertender.core.errors import DataError, DriftError
from bertender.metrics.tags import OUTSIDE
from bertender.models.classifier import Classifier, open_classifier
from bertender.problems.problem import Outputs, Problem
from bertender.problems.regression import LEAST_SCALE
from bertender.problems.several_heads import SeveralHeads
from bertender.tasks.rows import SkippedRows, stop, together
from bertender.tasks.task import Task, TaskConfig
from bertender.tasks.text_files import TextColumns, read_examples
from bertender.text.batch import Example, Tokenize, batched

Numbers = npt.NDArray[np.float64]

SEED = 0
LARGEST_P = 0.01
"""Level of significance for all tests together."""
RARE = 2
"""Training texts with a token; tokens in fewer are rare."""
FEWEST_TEXTS = 50
"""Fewest texts on either side; fewer cannot show a relevant effect."""
NO_DIFFERENCE = 1e-3
"""Confidences that differ by less count as equal, and predicted numbers by this share of their
spread. 8-bit models choose a scale for each batch, so the confidence for a text varies slightly
with the other texts. If nearly all texts are confident, this variation alone would reorder them."""
TEXTS_AT_ONCE = 64
FILE_SETTINGS = ("text_column", "pair_column", "skip_bad_rows")
"""Settings of a task that also say how the compared files are read."""
CONFIDENCE, NUMBER, LABELS = "confidence", "predicted number", "predicted labels"
NO_LABEL = "none"
"""Label of a text without one."""


class DriftConfig(Config):
    """Settings of `drift`."""

    panel: ClassVar[str] = "Drift"

    reference: Path | None = Field(
        None,
        description="compare with this file, of texts that the model has not learned from; by "
        "default with the validation texts of its task, or the held-out ones",
    )
    max_effect: float = Field(
        0.1,
        gt=0,
        le=1,
        description="largest effect without an alarm, as a share of the texts that differ; "
        "beyond it, and beyond chance, exit with 1",
    )
    max_texts: int = Field(5000, ge=50, description="read only so many texts of either side")


class Measure(Record):
    """A measure of the texts in the reference and now."""

    name: str
    test: str
    effect: float = Field(description="0 to 1: the share of the texts that would have to change")
    p: float = Field(description="of the test: probability of such an effect by chance")
    reference: float | dict[str, float] = Field(description="the mean, or the share of each label")
    recent: float | dict[str, float]
    drifted: bool


class Drift(Record):
    """Recent texts against reference texts."""

    artifact: str
    file: str
    reference: str = Field(description="source of the reference texts")
    reference_texts: int
    recent_texts: int
    max_effect: float
    max_p: float = Field(description="of each test, a part of 0.01")
    measures: tuple[Measure, ...]
    left_out: LeftOutRows | None = Field(None, description="rows of the files that were left out")

    @property
    def drifted(self) -> tuple[str, ...]:
        """Names of the drifted measures."""
        return tuple(each.name for each in self.measures if each.drifted)


@dataclass(frozen=True)
class Observed:
    """Measures of some texts with a model."""

    numbers: Mapping[str, Numbers]
    """Numbers for each text, by measure."""
    labels: Mapping[str, Sequence[Sequence[str]]]
    """Predicted labels of each text, by measure."""


def drift(
    artifact: Artifact,
    file: Path,
    config: DriftConfig,
    task: Task | None = None,
    reading: TaskConfig | None = None,
) -> Drift:
    """Compare the texts of a file with a model's reference texts.

    Args:
        artifact: artifact of the model.
        file: recent texts, with or without labels.
        config: settings of the reference and the limits.
        task: task of the model; not needed with `config.reference`.
        reading: FILE_SETTINGS of `file` and `config.reference`; by default the model's columns.

    Raises:
        ConfigError: the task, or the columns of a file, are not the model's.
        DataError: a file is wrong, or has too few texts.
    """
    reading, skipped = reading or TaskConfig(), SkippedRows()
    bad = skipped if reading.skip_bad_rows else stop
    first = reading.text_column if reading.is_explicit("text_column") else None
    classifier, record = open_classifier(artifact), artifact.card.task
    columns = TextColumns(classifier.problem, record, first, reading.pair_column)
    recent = read_examples(file, columns, bad)
    earlier: Sequence[Example]
    learned: Sequence[Example] = ()
    if config.reference is not None:
        earlier = read_examples(config.reference, columns, bad)
        named = str(config.reference)
    else:
        assert task is not None
        task.check_problem(artifact)
        column = first if first in task.text_columns else task.text_columns[0]
        split = "selection" if len(task.selection) else "dev"
        earlier = _of_column(task, getattr(task, split).examples, column)
        learned = _of_column(task, task.train.examples, column)
        kinds = {"selection": "the validation texts", "dev": "the held-out texts"}
        of = f"column {column!r} of " if task.problem.gives_vectors else ""
        named = f"{of}{kinds[split]} of task {task.name!r}"
    left_out = together(skipped.report(), task.left_out if task else None)
    if not learned:  # count rare tokens on texts that are not compared
        order = np.random.default_rng(SEED).permutation(len(earlier)).tolist()
        learned, earlier = ([earlier[row] for row in order[part::2]] for part in (0, 1))
    common = _common(classifier, _drawn(learned, config.max_texts))
    sides = [_drawn(each, config.max_texts) for each in (earlier, recent)]
    if (fewest := min(map(len, sides))) < FEWEST_TEXTS:
        raise DataError(
            f"{fewest} texts of {named if len(sides[0]) == fewest else file} are too few to tell "
            f"drift from chance: {FEWEST_TEXTS} are needed. Give more."
        )
    then, now = (observed(classifier, each, common) for each in sides)
    found = compared(
        then,
        now,
        config,
        artifact=artifact.place,
        file=str(file),
        reference=named,
        texts=(len(sides[0]), len(sides[1])),
    )
    return found.model_copy(update={"left_out": left_out})


def compared(
    then: Observed,
    now: Observed,
    config: DriftConfig,
    *,
    artifact: str,
    file: str,
    reference: str,
    texts: tuple[int, int],
) -> Drift:
    """Return the tests of two files' measures."""
    tests: list[tuple[str, str, float, float, Any, Any]] = []
    for name, own in then.numbers.items():
        spread = max(float(own.std()), LEAST_SCALE * float(np.abs(own).max()))
        unit = 1.0 if name == CONFIDENCE else spread if name.startswith(NUMBER) else 0.0
        effect, p = of_numbers(own, now.numbers[name], NO_DIFFERENCE * unit)
        means = float(own.mean()), float(now.numbers[name].mean())
        tests.append((name, "Kolmogorov-Smirnov", effect, p, *means))
    for name, found in then.labels.items():
        effect, p = of_labels(found, now.labels[name])
        shares = _shares(found), _shares(now.labels[name])
        tests.append((name, "chi-squared", effect, p, *shares))
    max_p = LARGEST_P / len(tests)
    return Drift(
        artifact=artifact,
        file=file,
        reference=reference,
        reference_texts=texts[0],
        recent_texts=texts[1],
        max_effect=config.max_effect,
        max_p=max_p,
        measures=tuple(
            Measure(
                name=name,
                test=test,
                effect=effect,
                p=p,
                reference=before,
                recent=after,
                drifted=effect > config.max_effect and p < max_p,
            )
            for name, test, effect, p, before, after in tests
        ),
    )


def require_no_drift(found: Drift) -> None:
    """Raise DriftError where a measure has drifted."""
    if found.drifted:
        raise DriftError(
            f"{found.file} is not like {found.reference}: {', '.join(found.drifted)} differ "
            f"by more than {found.max_effect:g}. Label some of these texts and score the model on "
            "them, or train it again."
        )


def of_numbers(then: Numbers, now: Numbers, same: float = 0.0) -> tuple[float, float]:
    """Return the largest difference of the cumulative shares of two samples, and its p.

    Args:
        then: numbers of the reference sample.
        now: numbers of the recent sample.
        same: numbers that differ by no more count as equal: each side is shifted by it towards the
            other, and the larger of the two one-sided statistics is returned.
    """
    from scipy.stats import ks_2samp

    # asymptotic: the exact p takes minutes for thousands of texts
    method = "auto" if len(then) + len(now) < 1000 else "asymp"
    if not same:
        found = ks_2samp(then, now, method=method)
        return float(found.statistic), float(found.pvalue)
    sides = (
        ks_2samp(then + same, now, alternative="greater", method=method),
        ks_2samp(then - same, now, alternative="less", method=method),
    )
    largest = max(sides, key=lambda each: each.statistic)
    return max(float(largest.statistic), 0.0), min(2 * float(largest.pvalue), 1.0)


def of_labels(then: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return half the sum of the differences in label shares, and the p of chi-squared.

    Args:
        then: labels of each reference text.
        now: labels of each recent text.
    """
    from scipy.stats import chi2, chi2_contingency

    texts = [*then, *now]
    places = {label: place for place, label in enumerate(dict.fromkeys(chain(*texts)))}
    if len(places) < 2:
        return 0.0, 1.0
    by_text = np.zeros((len(texts), len(places)))
    for row, own in enumerate(texts):
        np.add.at(by_text[row], [places[label] for label in own], 1.0)
    counts = np.stack([by_text[: len(then)].sum(axis=0), by_text[len(then) :].sum(axis=0)])
    shares = counts / counts.sum(axis=1, keepdims=True)
    effect = float(np.abs(shares[0] - shares[1]).sum() / 2)
    # the eigenvalues of `design` are the design effects: all 1 for one label a text
    overall = counts.sum(axis=0) / counts.sum()
    apart = (by_text - by_text.sum(axis=1, keepdims=True) * overall) / np.sqrt(overall)
    design = apart.T @ apart / counts.sum()
    total, squares = float(np.trace(design)), float(np.square(design).sum())
    if not squares:  # all texts have the same labels
        return effect, 1.0
    statistic = chi2_contingency(counts).statistic * total / squares
    return effect, float(chi2.sf(statistic, total**2 / squares))


def observed(
    classifier: Classifier, examples: Sequence[Example], common: frozenset[Any]
) -> Observed:
    """Return the measures of some texts with a model.

    Args:
        classifier: classifier of the model.
        examples: texts.
        common: tokens that are not rare.
    """
    problem, labels = classifier.problem, classifier.labels
    outputs = predict_outputs(classifier, examples, tokens_per_batch=TOKENS_PER_BATCH)
    numbers: dict[str, Numbers] = {}
    if problem.has_confidence:
        numbers[CONFIDENCE] = problem.confidence(outputs, labels)
    encode = classifier.encode
    lengths = encode.counts(examples) if isinstance(encode, Tokenize) else map(word_count, examples)
    numbers["tokens of a text"] = np.array([*lengths], dtype=np.float64)
    rare = (
        sum(token not in common for token in own) / max(1, len(own))
        for own in _tokens(classifier, examples)
    )
    numbers["share of unknown or rare tokens"] = np.array([*rare])
    found: dict[str, Sequence[Sequence[str]]] = {}
    for of, kind, own_labels, own in _heads(classifier, outputs):
        decoded = [kind.decode(each, example) for each, example in zip(own, examples, strict=True)]
        if kind.names_labels or kind.places_are_labels:
            found[LABELS + of] = [_labels_of(kind, own_labels, each) for each in decoded]
        elif all(isinstance(each, float) for each in decoded):
            numbers[NUMBER + of] = np.array(decoded)
    return Observed(numbers, found)


def _heads(
    classifier: Classifier, outputs: Sequence[Outputs]
) -> Iterator[tuple[str, Problem[Any], Sequence[str], Sequence[Outputs]]]:
    """Yield the end of a measure's name, the kind, the labels and the outputs of each head, or of a
    model without heads."""
    problem = classifier.problem
    if not isinstance(problem, SeveralHeads):
        yield "", problem, classifier.labels, outputs
        return
    for name, kind in problem.heads.items():
        own = [problem.of_head(name, each) for each in outputs]
        yield f" of {name}", kind, problem.own_labels[name], own


def _labels_of(kind: Problem[Any], labels: Sequence[str], predicted: Any) -> tuple[str, ...]:
    """Return the predicted labels of a text; of words, those that are not outside of entities."""
    numbers = kind.labels_of(predicted)
    if kind.places_are_labels:  # a question may have more choices than those of the training
        return tuple(map(str, numbers))
    outside = OUTSIDE if kind.labels_words else None
    found = tuple(labels[number] for number in numbers if labels[number] != outside)
    return found or (NO_LABEL,)


def _tokens(classifier: Classifier, examples: Sequence[Example]) -> Iterator[Sequence[Any]]:
    """Yield the tokens of each example, or words if the model reads raw text; None for unknown
    tokens."""
    if not isinstance(classifier.encode, Tokenize):
        yield from (" ".join(example).casefold().split() for example in examples)
        return
    unknown = getattr(classifier.encode.tokenizer, "unk_token_id", None)
    for some in batched(examples, TEXTS_AT_ONCE):
        batch = classifier.encode(some)
        masks = batch.arrays["attention_mask"].astype(bool)
        ids = [
            row[mask].tolist() for row, mask in zip(batch.arrays["input_ids"], masks, strict=True)
        ]
        for own in batch.by_example(ids):
            yield [None if each == unknown else each for row in own for each in row]


def _common(classifier: Classifier, examples: Sequence[Example]) -> frozenset[Any]:
    """Return the tokens that occur in several texts, except the unknown token."""
    counts = Counter(token for own in _tokens(classifier, examples) for token in {*own})
    return frozenset(token for token, count in counts.items() if count >= RARE) - {None}


def _of_column(task: Task, examples: Sequence[Example], column: str) -> Sequence[Example]:
    """Return examples of a task; of vectors the texts of one column, as the compared file has."""
    if not task.problem.gives_vectors:
        return task.problem.asked(examples)
    place = task.text_columns.index(column)
    return tuple((example[place],) for example in examples)


def _drawn(examples: Sequence[Example], most: int) -> Sequence[Example]:
    if len(examples) <= most:
        return examples
    rows = np.random.default_rng(SEED).choice(len(examples), most, replace=False)
    return [examples[row] for row in sorted(rows.tolist())]


def _shares(by_text: Sequence[Sequence[str]]) -> dict[str, float]:
    counts = Counter(chain.from_iterable(by_text))
    total = counts.total()
    return {label: counts[label] / total for label in sorted(counts)}


def drift_lines(found: Drift) -> Iterable[str]:
    """Yield the lines of a comparison: its settings, each measure, and the verdict."""
    yield (
        f"{found.recent_texts} texts of {found.file} against {found.reference_texts} of "
        f"{found.reference}; an alarm is an effect above {found.max_effect:g} with p below "
        f"{found.max_p:g}"
    )
    for each in found.measures:
        mark = "DRIFT" if each.drifted else "as before"
        yield (
            f"{each.name}: effect {each.effect:.3f}, p {each.p:.2g} ({each.test}): {mark}; "
            f"{_shown(each.reference)} then, {_shown(each.recent)} now"
        )


SHOWN_LABELS = 6


def _shown(value: float | dict[str, float]) -> str:
    if isinstance(value, dict):
        most = sorted(value.items(), key=lambda each: -each[1])
        more = f" and {len(most) - SHOWN_LABELS} more" if len(most) > SHOWN_LABELS else ""
        return ", ".join(f"{label} {share:.1%}" for label, share in most[:SHOWN_LABELS]) + more
    return f"{value:.3g}"
