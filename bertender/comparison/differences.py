"""The texts on which two models differ, worst first, and the errors of each.

Texts with different answers come first, by the first model's loss of confidence in its answer; then
texts with equal answers, by the largest change of a probability. With true labels, McNemar's exact
test tells whether one model is right more often: a binomial test on the texts that only one of the
models gets right.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.comparison.accuracy import answers, shown
from bertender.comparison.table import DASH, number
from bertender.core.artifact import Artifact
from bertender.core.config import Config, Record
from bertender.core.errors import ConfigError, ModelError
from bertender.core.files import replacing
from bertender.core.progress import visible
from bertender.metrics.metric import is_labelled
from bertender.models.classifier import Classifier, open_classifier, problem_of
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.problem import Outputs, Problem
from bertender.problems.reading import Columns
from bertender.problems.regression import REGRESSION
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.loading import load_files
from bertender.tasks.rows import READERS, SkippedRows, open_table, stop, write_jsonl
from bertender.tasks.task import Split, Task, TaskConfig, default_of, listed, with_model_labels
from bertender.tasks.text_files import TextColumns, has_lines, has_words, read_examples
from bertender.tasks.word_rows import SENTENCES, WORD_READERS, open_words
from bertender.text.batch import Example

COMPARED = frozenset(kind.name for kind in (SINGLE_LABEL, MULTI_LABEL, REGRESSION))
COMPARED |= {TOKEN_CLASSIFICATION.name}
"""Kinds of problems whose texts can be compared one by one."""
LEAST_CHANGE = 0.01
"""Smallest shown change of a probability, or of a number in the first model's standard
deviations."""
RECORDED_SETTINGS = ("text_column", "pair_column", "label_column", "label_map", "skip_bad_rows")
"""Settings of a task's files that a model's card records."""
SUFFIXES = (".csv", ".jsonl")
SECOND_COLUMN = "2"
"""Of CoNLL's: words alone have no tags."""
BETWEEN_TEXTS = " | "
SHOWN_CHARACTERS = 60
"""Most characters of a text in the terminal."""

FloatArray = npt.NDArray[np.float64]
Answer = str | float | tuple[str, ...]


class DiffConfig(Config):
    """Settings of `diff`."""

    panel: ClassVar[str] = "Texts"

    text_column: str | None = Field(
        None, description="column of the text in the file; by default the first artifact's"
    )
    pair_column: str | None = Field(None, description="column of the second text, likewise")
    label_column: str | None = Field(
        None, description="column of the true label, where there is one; likewise"
    )
    label_map: str | None = Field(
        None, description="labels of the file and of the models: DATA=MODEL by commas"
    )
    skip_bad_rows: bool | None = Field(
        None, description="leave out rows of the file that cannot be used, and list them"
    )
    rows: int = Field(20, ge=1, description="differences that the terminal shows")


class Difference(Record):
    """A text with different answers or probabilities."""

    row: int = Field(description="of the texts that were read, from 1")
    text: tuple[str, ...] = Field(description="its texts, or its words")
    gold: Answer | None = Field(description="true label; None without one")
    first: Answer
    second: Answer
    lost: float | None = Field(
        description="the second model's loss of confidence in the first's answer; None for equal "
        "answers, and for numbers"
    )
    change: float = Field(
        description="largest change of a probability, or the change of the number"
    )
    at: str | None = Field(description="label, and word, of that change; None of numbers")
    first_probability: float | None = Field(description="of that label; None of numbers")
    second_probability: float | None


class Differences(Record):
    """Two models on the same texts."""

    first: str
    second: str
    problem_type: str
    n: int = Field(description="texts")
    agreement: float | None = Field(description="share of equal answers; None of numbers")
    labelled: int = Field(description="texts with a true label")
    both_wrong: int | None = Field(None, description="of these; None of numbers, as the next three")
    only_first_wrong: int | None = None
    only_second_wrong: int | None = None
    p: float | None = Field(
        None, description="McNemar's exact test of the two before, two-sided; None without labels"
    )
    mean_change: float | None = Field(None, description="mean absolute difference, of numbers")
    first_error: float | None = Field(
        None, description="mean absolute error by the true numbers, of numbers"
    )
    second_error: float | None = None
    differences: tuple[Difference, ...] = Field(description="worst first")


class Answered(NamedTuple):
    """A model's answers to all texts, by names of labels."""

    name: str
    outputs: Sequence[Outputs]
    answers: Sequence[Any]
    problem: Problem[Any]
    labels: tuple[str, ...]

    def probabilities(self, row: int, example: Example, labels: Sequence[str]) -> FloatArray:
        """Return the probabilities of a text for labels in the given order: (1, labels), or (words,
        labels) with 0 for words that the model does not see."""
        outputs = self.outputs[row]
        order = [self.labels.index(label) for label in labels]
        own = self.problem.probabilities(outputs.logits, self.labels)[:, order]
        if not self.problem.labels_words:
            return own
        found = np.zeros((len(example), len(labels)))
        found[outputs.places] = own
        return found


def differences(first: Artifact, second: Artifact, task: Task) -> Differences:
    """Return where two models differ on the held-out texts of a task.

    Raises:
        ConfigError: their kind of problem cannot be compared text by text.
        ModelError: their kinds of problems or their labels differ.
    """
    check_comparable(first, second)
    # only one model in memory at a time
    one, other = (answered(open_classifier(each), task.dev.examples) for each in (first, second))
    return differences_of(one, other, task)


def differences_of(one: Answered, other: Answered, task: Task) -> Differences:
    """Return the differences between the answers of two models to the held-out texts of a task."""
    gold: list[Any] = [
        task.problem.by_names(target, task.labels) if is_labelled(target) else None
        for target in task.dev.label_ids
    ]
    if one.problem.name == MULTI_LABEL.name:  # equal sets of models with other orders are equal
        place = one.labels.index
        gold = [each and tuple(sorted(each, key=place)) for each in gold]
        answers = [tuple(sorted(each, key=place)) for each in other.answers]
        other = other._replace(answers=answers)
    rows = _numbers if one.problem.name == REGRESSION.name else _labels
    found = sorted(rows(one, other, task.dev.examples, gold), key=_badness)
    return Differences(
        first=one.name,
        second=other.name,
        problem_type=one.problem.name,
        n=len(task.dev),
        labelled=sum(each is not None for each in gold),
        differences=tuple(found),
        **_counts(one, other, gold),
    )


def check_comparable(first: Artifact, second: Artifact) -> None:
    """Raise where two models cannot be compared text by text."""
    kinds = [each.card.task.problem_type for each in (first, second)]
    if kinds[0] != kinds[1]:
        raise ModelError(
            f"{first.place} was made for {kinds[0]!r} and {second.place} for {kinds[1]!r}, so that "
            "their answers cannot be compared. Give two artifacts of one task."
        )
    if kinds[0] not in COMPARED:
        raise ConfigError(
            f"{first.place} is a model of {kinds[0]!r}, and texts are compared one by one for "
            f"{', '.join(sorted(COMPARED))}. `bertender compare` and `verify` take any kind."
        )
    own, theirs = (each.card.task.labels for each in (first, second))
    if kinds[0] != REGRESSION.name and {*own} != {*theirs}:
        alone = [(first, {*own} - {*theirs}), (second, {*theirs} - {*own})]
        lacking = [
            f"{each.place} alone has {listed(sorted(names))}" for each, names in alone if names
        ]
        raise ModelError(
            f"the artifacts have different labels: {' and '.join(lacking)}. Give two of one task."
        )


def task_of_file(artifact: Artifact, path: Path, config: DiffConfig) -> Task:
    """Return the texts of a file as held-out texts of a model's task. Columns are those on the card
    unless the config names others. Labels are optional.

    Raises:
        DataError: the file is wrong.
        ConfigError: its labels are not the model's, or it has other numbers of texts.
    """
    record, problem = artifact.card.task, problem_of(artifact)
    source = record.source if record.source.get("train") or record.source.get("dev") else {}
    named = {name: getattr(config, name) for name in RECORDED_SETTINGS if config.is_explicit(name)}
    known = {name: source[name] for name in RECORDED_SETTINGS if source.get(name) is not None}
    kind = {} if problem is SINGLE_LABEL else {"problem_type": problem.name}
    settings = TaskConfig.parse({**known, **kind, **named, "dev": path})
    if config.label_column is None and not _has_labels(path, settings, problem):
        skipped = SkippedRows()
        columns = TextColumns(problem, record, config.text_column, config.pair_column)
        bad = skipped if settings.skip_bad_rows else stop
        examples = read_examples(path, columns, bad)
        dev = Split(examples, tuple(map(problem.unlabelled, examples)))
        return Task(
            *(record.name, record.labels, record.metric, record.text_columns, Split((), ()), dev),
            problem_type=problem.name,
            left_out=skipped.report(),
        )
    task = load_files(settings, has_model=True)
    problem.check_columns(task.text_columns, record.text_count)
    return with_model_labels(task, record.labels, settings.label_map, artifact.name)


def _has_labels(path: Path, settings: TaskConfig, problem: Problem[Any]) -> bool:
    """Return whether a file has the label columns."""
    suffix = path.suffix.lower()
    if has_lines(path) or (suffix == SENTENCES and not path.with_suffix(".out").is_file()):
        return False
    is_table = suffix in READERS.keys() - WORD_READERS.keys()
    there = (open_words if problem.labels_words and not is_table else open_table)(path).columns
    if has_words(path):
        return SECOND_COLUMN in there
    usual: Columns = problem.usual_columns(there)
    names = {settings.label_column}
    if settings.label_column == default_of("label_column"):
        names.add(usual.label)
    return any({*problem.label_columns(name)} <= {*there} for name in names)


def answered(model: Classifier, examples: Sequence[Example]) -> Answered:
    """Return a model's answers to some texts.

    Raises:
        ModelError: a logit is NaN or infinite.
    """
    outputs, predictions = answers(model, Split(tuple(examples), ()))
    named = [model.problem.by_names(each, model.labels) for each in predictions]
    return Answered(model.name, outputs, named, model.problem, model.labels)


def _labels(
    one: Answered, other: Answered, examples: Sequence[Example], gold: Sequence[Any]
) -> Iterator[Difference]:
    """Yield the differences of models whose answers are labels."""
    for row, example in enumerate(examples):
        own, theirs = (each.probabilities(row, example, one.labels) for each in (one, other))
        answers = one.answers[row], other.answers[row]
        moved = _moved(one, row, own, theirs, answers)
        if not moved.turned and moved.change < LEAST_CHANGE:
            continue
        word = f"{example[moved.place]}: " if one.problem.labels_words else ""
        place = moved.place, moved.label
        yield Difference(
            row=row + 1,
            text=example,
            gold=gold[row],
            first=answers[0],
            second=answers[1],
            lost=moved.lost if moved.turned else None,
            change=float(np.abs(own - theirs).max(initial=0.0)),
            at=f"{word}{one.labels[moved.label]}",
            first_probability=float(own[place]),
            second_probability=float(theirs[place]),
        )


class _Moved(NamedTuple):
    """The worst change of a text's probabilities."""

    turned: bool
    place: int
    label: int
    lost: float
    change: float


def _moved(
    one: Answered, row: int, own: FloatArray, theirs: FloatArray, answers: tuple[Any, Any]
) -> _Moved:
    """Return the position with the largest loss of confidence in a changed answer, or else with the
    largest change.

    Args:
        one: first model.
        row: number of the text.
        own: its probabilities (places, labels). theirs: the second model's, for the same labels.
        answers: answers of both, as label names.
    """
    change = np.abs(own - theirs)
    most = float(change.max(initial=0.0))
    if answers[0] == answers[1]:
        place, label = map(int, np.unravel_index(int(change.argmax()), change.shape))
        return _Moved(False, place, label, 0.0, most)
    numbers = {label: number for number, label in enumerate(one.labels)}
    if one.problem.name == MULTI_LABEL.name:
        # a new label of the set was absent with the complement of its probability
        turned = sorted(numbers[each] for each in {*answers[0]} ^ {*answers[1]})
        label = max(turned, key=lambda each: float(change[0, each]))
        return _Moved(True, 0, label, float(change[0, label]), most)
    pairs = [answers] if isinstance(answers[0], str) else [*zip(*answers, strict=True)]
    lost = own - theirs
    turned_at = [
        (place, numbers[before]) for place, (before, after) in enumerate(pairs) if before != after
    ]
    worst = max(turned_at, key=lambda each: float(lost[each]))
    return _Moved(True, *worst, float(lost[worst]), most)


def _numbers(
    one: Answered, other: Answered, examples: Sequence[Example], gold: Sequence[Any]
) -> Iterator[Difference]:
    """Yield the differences of models whose answers are numbers."""
    own, theirs = (np.asarray(each.answers, dtype=np.float64) for each in (one, other))
    least = LEAST_CHANGE * float(own.std())
    for row, (first, second) in enumerate(zip(own.tolist(), theirs.tolist(), strict=True)):
        if abs(first - second) > least:
            yield Difference(
                row=row + 1,
                text=examples[row],
                gold=gold[row],
                first=first,
                second=second,
                lost=None,
                change=abs(first - second),
                at=None,
                first_probability=None,
                second_probability=None,
            )


def _badness(each: Difference) -> tuple[bool, float]:
    """Return the sort key of differences: changed answers by their loss, then changes."""
    return each.lost is None, -(each.change if each.lost is None else each.lost)


def _counts(one: Answered, other: Answered, gold: Sequence[Any]) -> dict[str, Any]:
    """Return the counts for `Differences`."""
    if one.problem.name == REGRESSION.name:
        own, theirs = (np.asarray(each.answers, dtype=np.float64) for each in (one, other))
        counts = {"agreement": None, "mean_change": float(np.abs(own - theirs).mean())}
        known = np.array([np.nan if each is None else each for each in gold], dtype=np.float64)
        if not np.isnan(known).all():
            counts["first_error"] = float(np.nanmean(np.abs(own - known)))
            counts["second_error"] = float(np.nanmean(np.abs(theirs - known)))
        return counts
    pairs = [*zip(one.answers, other.answers, gold, strict=True)]
    agreement = float(np.mean([first == second for first, second, _ in pairs]))
    right = [(first == true, second == true) for first, second, true in pairs if true is not None]
    if not right:
        return {"agreement": agreement}
    only_first, only_second = right.count((False, True)), right.count((True, False))
    return {
        "agreement": agreement,
        "both_wrong": right.count((False, False)),
        "only_first_wrong": only_first,
        "only_second_wrong": only_second,
        "p": mcnemar(only_first, only_second),
    }


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of McNemar's exact test, for the hypothesis of equally good models.

    Args:
        only_first, only_second: numbers of texts that only this model gets wrong.
    """
    from scipy.stats import binomtest  # scipy takes a second to import

    discordant = only_first + only_second
    return float(binomtest(only_first, discordant).pvalue) if discordant else 1.0


def difference_lines(found: Differences) -> Iterator[str]:
    """Yield the lines on the agreement of two models."""
    if found.agreement is None:
        yield (
            f"{found.n} texts, mean absolute difference {number(found.mean_change)}, "
            f"{len(found.differences)} of them further apart than {LEAST_CHANGE:g} spreads"
        )
        if found.first_error is not None:
            yield (
                f"mean absolute error on {found.labelled} with a true number: {found.first} "
                f"{number(found.first_error)}, {found.second} {number(found.second_error)}"
            )
        return
    turned = sum(each.lost is not None for each in found.differences)
    yield (
        f"{found.n} texts, {turned} of them answered differently (agreement "
        f"{found.agreement:.4f}), and {len(found.differences) - turned} with a probability that "
        f"changes by {LEAST_CHANGE:g} or more"
    )
    if found.p is not None:
        yield (
            f"of {found.labelled} with a true label: both wrong {found.both_wrong}, only "
            f"{found.first} {found.only_first_wrong}, only {found.second} "
            f"{found.only_second_wrong}; McNemar's exact p = {found.p:.3g}"
        )


def difference_cells(each: Difference) -> tuple[str, ...]:
    """Return a row of the terminal's table: number, text, true label, answers, position and
    change."""
    text = visible(BETWEEN_TEXTS.join(each.text))
    cut = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    moved = number(each.change)
    if each.first_probability is not None and each.second_probability is not None:
        moved = f"{each.first_probability:.2f} -> {each.second_probability:.2f}"
    answers = (visible(shown(answer)) for answer in (each.gold, each.first, each.second))
    return str(each.row), cut, *answers, visible(each.at or DASH), moved


def save_differences(found: Differences, path: Path) -> None:
    """Write the differences, worst first, as CSV or JSONL, by the suffix of the path."""
    rows = [each.model_dump(mode="json") for each in found.differences]
    with replacing(path) as draft:
        if path.suffix.lower() == ".jsonl":
            write_jsonl(draft, rows)
            return
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*Difference.model_fields])
            writer.writeheader()
            for row in rows:
                cells = {
                    name: BETWEEN_TEXTS.join(value) if isinstance(value, list) else value
                    for name, value in row.items()
                }
                writer.writerow(cells)
