"""Predictions and scores of a classifier, and detection of constant models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import ConfigError, ConstantError, DataError, ModelError
from bertender.core.findings import ConstantFindings, ScoreFindings
from bertender.core.progress import progress_bar
from bertender.metrics import METRICS, score
from bertender.metrics.metric import OF_HEAD, AllScores, Score, label_scores
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs, Problem
from bertender.problems.regression import REGRESSION
from bertender.tasks.loading import sample
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch, Encode, Example, batched, length_buckets
from bertender.training.config import JudgedConfig, TrainingConfig

logger = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float32]

TOKENS_PER_BATCH = 4096
EXAMPLES_PER_ENCODING = 64
"""Texts to tokenise at once for their lengths; few, so that a long text pads few others."""
FEWEST_OTHERS = 100
"""Fewest texts with other labels to refuse a constant model: a model that finds one in thirty of
them misses all 100 in 3 % of cases. With fewer, there is only a warning."""
SKEWED = 0.9
"""Share of one label from which a model may predict it always after a short training, unless the
metric is 0 then."""
TEACHER_TEXTS = 512
TEXTS_AT_ONCE = 64
"""Texts to check a teacher; most teachers predict two labels on the first of these batches."""
USUAL_RATES = (5e-5, 3e-4)
SETTINGS_OF_RUN = ("learning_rate", "epochs")
"""Settings named in the error for a constant model."""


def predict(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> FloatArray:
    """Return the logits (examples, labels), in the order of the examples; for a model that labels
    words, (words, labels). Arguments and errors are those of `predict_outputs`.
    """
    outputs = predict_outputs(classifier, examples, tokens_per_batch=tokens_per_batch)
    return np.concatenate([each.logits for each in outputs])


def predict_outputs(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> list[Outputs]:
    """Return the outputs of each example, in their order.

    Examples are batched by length, at most `tokens_per_batch` tokens with padding, longest first,
    so that too little memory shows at once.

    Raises:
        DataError: there are no examples.
        ModelError: the model returns another number of rows than a batch has, or a logit is NaN or
            infinite.
    """
    if not examples:
        raise DataError("no examples to predict: the split is empty. Give at least one example.")
    buckets = encoded_buckets(classifier.encode, examples, tokens_per_batch)
    outputs: dict[int, Outputs] = {}
    with progress_bar(f"predict {classifier.name}", len(examples), "texts") as bar:
        for bucket in reversed(buckets):
            found = classifier.outputs([examples[row] for row in bucket])
            outputs.update(zip(bucket, found, strict=True))
            bar.advance(len(bucket))
    broken = [row for row in range(len(examples)) if not np.isfinite(outputs[row].logits).all()]
    if broken:
        raise ModelError(
            f"{classifier.name} predicts {len(broken)} of {len(outputs)} examples with NaN or "
            f"infinite logits, first {examples[broken[0]]!r}. Train or export the model again."
        )
    return [outputs[row] for row in range(len(examples))]


def evaluate(classifier: Classifier, split: Split, metric: str) -> tuple[Score, Any]:
    """Return the classifier's score on a split, and its predictions: (rows,), or tags by sentence.

    Raises:
        ModelError: a logit is NaN or infinite, so there is no prediction to score.
    """
    _, predictions = answers(classifier, split)
    labels = classifier.labels
    measured = score(metric, split.label_ids, predictions, label_count=len(labels), labels=labels)
    return measured, predictions


def evaluate_all(classifier: Classifier, split: Split, metric: str) -> tuple[AllScores, Any]:
    """Return every score of the classifier on a split, and its predictions as `evaluate` does."""
    outputs, predictions = answers(classifier, split)
    problem, labels = classifier.problem, classifier.labels
    return all_scores(problem, labels, split, metric, predictions, outputs), predictions


def all_scores(
    problem: Problem[Any],
    labels: Sequence[str],
    split: Split,
    metric: str,
    predictions: Any,
    outputs: Sequence[Outputs],
) -> AllScores:
    """Return a task's score and all other scores for its kind of problem.

    Args:
        problem: kind of problem.
        labels: labels of the model.
        split: split of the predictions.
        metric: metric of the task; for several heads, its mean may differ from the default.
        predictions: predictions for the split.
        outputs: model outputs, for metrics that read logits.
    """
    scores = tuple(
        score_by(name, labels, split, predictions, outputs)
        for name in dict.fromkeys((*problem.metrics, metric))
    )
    judged = map(problem.where_labelled, predictions, split.label_ids)
    truth, found = (
        [problem.parts(each, labels) for each in targets] for targets in (split.label_ids, judged)
    )
    return AllScores(
        scores=scores, by_label=label_scores(truth, found, problem.scored_labels(labels))
    )


def score_by(
    metric: str,
    labels: Sequence[str],
    split: Split,
    predictions: Any,
    outputs: Sequence[Outputs],
) -> Score:
    """Return a score of predictions, or of the outputs if the metric reads logits."""
    reads_logits = METRICS[metric].reads_logits
    return score(
        metric,
        split.label_ids,
        [each.logits[0] for each in outputs] if reads_logits else predictions,
        label_count=len(labels),
        labels=labels,
    )


class Answers(NamedTuple):
    """Outputs and predictions for a split."""

    outputs: Sequence[Outputs]
    predictions: Any


def answers(
    classifier: Classifier, split: Split, *, tokens_per_batch: int = TOKENS_PER_BATCH
) -> Answers:
    """Return a classifier's answers to a split.

    Raises:
        ModelError: a logit is NaN or infinite, so there is no prediction.
    """
    outputs = predict_outputs(classifier, split.examples, tokens_per_batch=tokens_per_batch)
    return Answers(outputs, decoded(classifier.problem, outputs, split.examples))


def decoded(problem: Problem[Any], outputs: Sequence[Outputs], examples: Sequence[Example]) -> Any:
    """Return the predictions of examples, given the outputs of each."""
    pairs = zip(outputs, examples, strict=True)
    return problem.gather([problem.decode(each, example) for each, example in pairs])


def encoded_buckets(
    encode: Encode, examples: Sequence[Example], tokens_per_batch: int
) -> list[list[int]]:
    """Return batches of example numbers, of similar length within a batch, the shortest first."""
    lengths: list[int] = []
    counts: list[int] = []
    for batch in _encoded(encode, examples):
        lengths += _lengths(batch)
        counts += batch.counts
    return length_buckets(lengths, tokens_per_batch, counts=counts)


def text_lengths(encode: Encode, examples: Sequence[Example]) -> list[int]:
    """Return the length of each example's longest row, in tokens, or in words if the model reads
    raw text.
    """
    return [length for batch in _encoded(encode, examples) for length in _lengths(batch)]


def _encoded(encode: Encode, examples: Sequence[Example]) -> Iterator[Batch]:
    for some in batched(examples, EXAMPLES_PER_ENCODING):
        yield encode(some)


def _lengths(batch: Batch) -> list[int]:
    has_mask = "attention_mask" in batch.arrays
    return batch.lengths() if has_mask else [*map(word_count, batch.examples)]


def word_count(example: Example) -> int:
    """Return the number of whitespace-separated words in all texts of an example."""
    return sum(len(text.split()) for text in example)


class ConstantRow(Record):
    """A constant answer, scored like a model: the control that reads no text."""

    label: str = Field(
        description="the best one for the training texts: the most frequent, or mean"
    )
    score: Score

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"always {self.label}"


def constant_row(task: Task) -> ConstantRow:
    """Return the held-out score of the best constant answer for the training examples."""
    known = task.train.labelled or task.choices
    answer, answered = task.problem.constant(known.label_ids, task.labels)
    predictions = task.problem.gather([answered(example) for example in task.dev.examples])
    measured = score(
        task.metric,
        task.dev.label_ids,
        predictions,
        label_count=len(task.labels),
        labels=task.labels,
    )
    return ConstantRow(label=answer, score=measured)


def found_constant(task: Task, split: Split, predictions: Sequence[Any]) -> ConstantFindings | None:
    """Return a model's constant answer, or None if its answers vary or the truth does not. If
    several heads are constant, one that has learned nothing precedes one on skewed data; among
    those, the least accurate head.
    """
    constants, truth, labels = [], split.label_ids, task.labels
    for found in task.problem.same_everywhere(predictions, truth, labels):
        metric = _metric_of(task, found.head) if found.head else task.metric
        value = None
        if not METRICS[metric].reads_logits:
            own = score(metric, truth, predictions, label_count=len(labels), labels=labels)
            value = own.value
        constants.append(
            ConstantFindings(
                label=found.answer,
                share=found.share,
                n=found.labels,
                metric=metric,
                score=value,
                truth=found.truth,
            )
        )
    return min(constants, key=lambda each: (not is_fault(each), each.share), default=None)


def _metric_of(task: Task, head: str) -> str:
    """Return the score of one of several heads."""
    return f"{head}{OF_HEAD}{task.of_head(head).metric}"


def score_findings(
    task: Task, found: AllScores, predictions: Sequence[Any], **more: Any
) -> ScoreFindings:
    """Return the findings on a model's held-out scores.

    Args:
        task: task of the texts.
        found: all scores on them.
        predictions: predictions for them.
        more: other fields of ScoreFindings.
    """
    own = found.of(task.metric)
    return ScoreFindings(
        chosen_on=task.chosen_on,
        score=own.value,
        metric=own.metric,
        task=task.name,
        n=own.n,
        undefined=own.undefined,
        scores={each.metric: each.value for each in found.scores if each.undefined is None},
        constant=found_constant(task, task.dev, predictions),
        **more,
    )


def is_fault(constant: ConstantFindings) -> bool:
    """Return whether a constant model has learned nothing, rather than following skewed data."""
    others = round((1 - constant.share) * constant.n)
    worthless = constant.score is not None and constant.score <= 0
    return others >= FEWEST_OTHERS and (constant.share < SKEWED or worthless)


def warn_early(task: Task, split: Split, predictions: Sequence[Any], config: JudgedConfig) -> None:
    """Log a warning where a model in training predicts one label everywhere."""
    constant = found_constant(task, split, predictions)
    if constant and not config.allow_constant:
        logger.warning(
            "task %s: so far the model %s. If that stays, it has learned nothing",
            task.name,
            constant.words,
        )


def check_varied(
    scores: ScoreFindings, task: Task, config: JudgedConfig, settings: Sequence[str], advice: str
) -> None:
    """Raise ConstantError if a trained model has learned nothing but one label.

    Several answers may be noise. A model with several is compared with the best constant answer; a
    warning is logged if its score is within that answer's 95 % interval. Heads are compared one by
    one, since their mean hides a bad one.

    Args:
        scores: scores of the model on the held-out texts.
        task: task of these texts.
        config: settings of the training.
        settings: settings to name in the message.
        advice: next step, for the message.
    """
    for own, found in _of_several_answers(scores, task):
        floor = constant_row(own)
        least, high = floor.score.value, floor.score.high
        if found <= (0.0 if floor.score.undefined else high):
            logger.warning(
                "task %s: the model has %s %.4g on the held-out texts, and the answer %r to "
                "all of them %.4g, or by chance up to %.4g: it has learned next to nothing. "
                "Try %s",
                *(own.name, own.metric, found, floor.label, least, high, advice),
            )
    constant = scores.constant
    if constant is None or config.allow_constant:
        return
    if not is_fault(constant):
        logger.warning("task %s: on the held-out texts, the model %s", task.name, constant.words)
        return
    value = scores.score if constant.score is None else constant.score
    raise ConstantError(
        f"{config.as_set(settings)}: on the held-out texts of task {task.name!r}, the model "
        f"{constant.words}. It has learned nothing ({constant.metric} {value:.4g}), and is not "
        f"written. Try {advice}. If it is what you want all the same, allow_constant writes it "
        "without training again."
    )


def _of_several_answers(scores: ScoreFindings, task: Task) -> Iterator[tuple[Task, float]]:
    """Yield a task and its score, or those of each head, without constant ones."""
    if not (task.problem.heads or scores.constant):
        yield task, scores.score
    constant = scores.constant.metric if scores.constant else None
    for name in task.problem.heads:
        metric = _metric_of(task, name)
        if metric != constant and (found := scores.scores.get(metric)) is not None:
            yield task.of_head(name), found


def check_teacher_varied(
    classifier: Classifier, path: Path, task: Task, otherwise: str = ""
) -> None:
    """Raise ConstantError for a constant teacher; a few texts show that others are not.

    Args:
        classifier: classifier with the task's labels.
        path: path of its artifact, for the message.
        task: task, some of whose validation texts are read.
        otherwise: end of the message: the setting that allows such a teacher.
    """
    texts = sample(task.choices, TEACHER_TEXTS, task.problem)
    if not len(texts):
        return
    few = texts.first(TEXTS_AT_ONCE)
    _, predictions = evaluate(classifier, few, task.metric)
    if len(few) > 1 and found_constant(task, few, predictions) is None:
        return
    _, predictions = evaluate(classifier, texts, task.metric)
    constant = found_constant(task, texts, predictions)
    if constant and is_fault(constant):
        raise ConstantError(
            f"the teacher {path} {constant.words}: nothing can be learned from it. Give another "
            f"teacher, or train this one again.{otherwise}"
        )


def another_rate(config: TrainingConfig) -> str:
    """Return the learning rate to try after a model has learned nothing."""
    low, high = USUAL_RATES
    if config.learning_rate < low:
        return f"a higher learning_rate, as {low:g} to {high:g}"
    if config.learning_rate > high:
        return f"a lower learning_rate, as {low:g} to {high:g}"
    return "a learning_rate a few times higher, or lower"


def is_below_chance(score: Score, labels: int) -> bool:
    """Return whether a model scores below chance, as with swapped labels or inverted numbers."""
    metric = METRICS.get(score.metric)
    chance = None if metric is None else metric.chance(labels)
    return score.undefined is None and chance is not None and score.high < chance


def reversed_words(problem: Problem[Any]) -> str:
    """Return the likely reason for a score below chance."""
    if problem.names_labels:
        return "its labels look swapped"
    return "its numbers fall where those of the data rise"


def check_labels_fit(classifier: Classifier, task: Task) -> None:
    """Warn of a model that scores below chance on the validation texts.

    Raises:
        ConfigError: the model does, and its labels were matched by a map or a guess: damage to such
            a model would count as a gain.
    """
    if not len(task.choices) or task.problem.gives_vectors:  # the gate reports missing texts
        return
    found, predictions = evaluate(classifier, task.choices, task.metric)
    if not is_below_chance(found, len(task.labels)):
        if task.problem is REGRESSION:
            _warn_of_unit(classifier.name, np.asarray(task.choices.label_ids), predictions)
        return
    said = (
        f"{classifier.name} has {found.metric} {found.value:.3f} [{found.low:.3f}, "
        f"{found.high:.3f}] on {found.n} texts, less than a guess: {reversed_words(task.problem)}"
    )
    if not task.problem.names_labels:
        logger.warning("%s. Turn one of the two round, or take another model", said)
        return
    if label_map := task.source.get("label_map"):
        raise ConfigError(f"label_map={label_map}: {said}. Give another --label-map.")
    logger.warning("%s. Compare their order with that of the data (--label-map)", said)


def error_of_unit(truth: npt.NDArray[np.float64], numbers: Any) -> float | None:
    """Return the root mean square error of numbers that are further from the true ones than their
    mean, as in another unit; None if they are not."""
    error = float(np.sqrt(np.square(truth - numbers).mean()))
    return error if error > float(truth.std()) else None


def _warn_of_unit(name: str, truth: npt.NDArray[np.float64], numbers: Any) -> None:
    """Log a warning for numbers that are further from the true ones than their mean: a correlation
    ignores units and offsets."""
    if (error := error_of_unit(truth, numbers)) is not None:
        logger.warning(
            "%s gives numbers of mean %.4g and standard deviation %.4g, and the data have %.4g and "
            "%.4g: it is further from them (%.4g) than their mean. Has it another unit, or hardly "
            "trained?",
            *(name, float(numbers.mean()), float(numbers.std()), float(truth.mean())),
            *(float(truth.std()), error),
        )


def shown(answer: Any) -> str:
    """Return an answer as label names for a cell; a dash for None."""
    if answer is None:
        return "-"
    if isinstance(answer, str):
        return answer
    if isinstance(answer, float | np.floating):
        return f"{answer:.4g}"
    if isinstance(answer, Mapping):
        return "; ".join(f"{name}: {shown(each)}" for name, each in answer.items())
    if isinstance(answer, Sequence | np.ndarray):
        return ", ".join(map(shown, answer)) or "none"
    return str(answer)
