"""The bag-of-words baseline: TF-IDF with a linear model, which a teacher must beat."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from bertender.comparison.accuracy import all_scores, check_varied, decoded, score_findings
from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import ConfigError, DataError
from bertender.core.findings import Findings
from bertender.metrics.metric import is_labelled
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.problems.problem import Problem
from bertender.problems.regression import REGRESSION
from bertender.problems.sentence_embedding import SENTENCE_EMBEDDING
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Split, Task
from distill.finetuning.config import BagOfWordsConfig

MOST_DIMENSIONS = 512
"""Largest width of text vectors."""


def train_bag_of_words(task: Task, config: BagOfWordsConfig, out: Path) -> Artifact:
    """Fit the baseline on a task's training examples and write it as an artifact.

    The vocabulary is JSON, the weights safetensors. The artifact can be compared, but not exported
    or served.

    Raises:
        ConfigError: the kind of task has no linear model, or one without regularisation that is
            set.
        DataError: a label has no training example.
        ConstantError: the baseline predicts only one label.
    """
    kinds = [each.name for each in task.problem.heads.values()] or [task.problem_type]
    if not {*kinds} <= {*FITTED}:
        raise ConfigError(
            f"task {task.name!r} is one of {task.problem_type!r}, and a bag of words answers for a "
            f"text as a whole: {', '.join(FITTED)}. Compare with a smaller encoder."
        )
    if kinds == [SENTENCE_EMBEDDING.name] and config.is_explicit("inverse_regularisation"):
        raise ConfigError(
            f"inverse_regularisation={config.inverse_regularisation:g}: vectors of texts are "
            "fitted without labels, and nothing is regularised. Leave it out."
        )
    check_labels_present(task)
    vectorizer = TfidfVectorizer(ngram_range=(1, config.longest_ngram), sublinear_tf=True)
    features = vectorizer.fit_transform(_texts(task.train, task.problem))
    linear = _fit(features, task, config)
    problem = task.problem
    held_out = vectorizer.transform(_texts(task.dev, problem))
    logits = held_out @ linear.coefficients.T + linear.intercepts
    outputs = problem.outputs(logits.astype(np.float32), problem.keep_text(task.dev.examples))
    predictions = decoded(problem, outputs, task.dev.examples)
    found = all_scores(problem, task.labels, task.dev, task.metric, predictions, outputs)
    scores = score_findings(task, found, predictions)
    advice = "a larger inverse_regularisation, or more training texts"
    check_varied(scores, task, config, ("longest_ngram", "inverse_regularisation"), advice)
    with new_artifact(
        out,
        kind="bag-of-words",
        family="bag-of-words",
        task=task.record(),
        stage="baseline",
        config=config,
        seed=config.seed,
    ) as draft:
        _write(draft.directory, vectorizer, linear)
        parameters = int(linear.coefficients.size + linear.intercepts.size)
        draft.findings = Findings(parameters=parameters, scores=scores)
    return Artifact.load(out)


class Linear(NamedTuple):
    """A fitted linear model."""

    coefficients: npt.NDArray[np.float64]
    """(labels, features)"""
    intercepts: npt.NDArray[np.float64]
    """(labels,)"""


def _fit_logistic(features: Any, targets: Sequence[int], config: BagOfWordsConfig) -> Linear:
    """Fit a logistic regression: a row for each label, or one row where there are two labels."""
    model = LogisticRegression(
        C=config.inverse_regularisation, max_iter=1000, random_state=config.seed
    )
    model.fit(features, targets)
    return Linear(model.coef_, model.intercept_)


def _fit_single_label(features: Any, task: Task, config: BagOfWordsConfig) -> Linear:
    """Fit a single-label model, with a row of coefficients for each label."""
    coefficients, intercepts = _fit_logistic(features, task.train.label_ids, config)
    if len(coefficients) > 1:
        return Linear(coefficients, intercepts)
    halves = np.array([-0.5, 0.5])
    return Linear(halves[:, None] * coefficients, halves * intercepts)


def _fit_multi_label(features: Any, task: Task, config: BagOfWordsConfig) -> Linear:
    """Fit a multi-label model: a logistic regression for each label."""
    own = []
    for label in range(len(task.labels)):
        there = [int(label in target) for target in task.train.label_ids]
        if all(there):  # one class only: nothing to fit
            own.append(Linear(np.zeros((1, features.shape[1])), np.ones(1)))
        else:
            own.append(_fit_logistic(features, there, config))
    return Linear(*map(np.concatenate, zip(*own, strict=True)))


def _fit_regression(features: Any, task: Task, config: BagOfWordsConfig) -> Linear:
    """Fit a ridge regression."""
    model = Ridge(alpha=1 / config.inverse_regularisation, random_state=config.seed)
    model.fit(features, task.train.label_ids)
    return Linear(model.coef_[None], np.array([model.intercept_]))


def _fit_embedding(features: Any, task: Task, config: BagOfWordsConfig) -> Linear:
    """Fit latent semantic analysis (Deerwester et al. 1990), which reads no labels."""
    width = min(MOST_DIMENSIONS, *(size - 1 for size in features.shape))
    model = TruncatedSVD(max(width, 1), random_state=config.seed).fit(features)
    return Linear(model.components_, np.zeros(len(model.components_)))


FITTED: Mapping[str, Callable[[Any, Task, BagOfWordsConfig], Linear]] = {
    SINGLE_LABEL.name: _fit_single_label,
    MULTI_LABEL.name: _fit_multi_label,
    REGRESSION.name: _fit_regression,
    SENTENCE_EMBEDDING.name: _fit_embedding,
}
"""The linear model of each kind of problem."""


def _fit(features: Any, task: Task, config: BagOfWordsConfig) -> Linear:
    """Fit the linear model of a task. Models of several heads are stacked, each fitted on the texts
    that have a label for the head."""
    if not task.problem.heads:
        return FITTED[task.problem_type](features, task, config)
    own = []
    for place, (name, kind) in enumerate(task.problem.heads.items()):
        rows = [row for row, true in enumerate(task.train.label_ids) if is_labelled(true[place])]
        own.append(FITTED[kind.name](features[rows], task.of_head(name), config))
    return Linear(*map(np.concatenate, zip(*own, strict=True)))


def _texts(split: Split, problem: Problem[Any]) -> list[str]:
    return [" ".join(example) for example in problem.asked(split.examples)]


def check_labels_present(task: Task) -> None:
    """Raise DataError unless every label has a training example."""
    present = {label for target in task.train.label_ids for label in task.problem.labels_of(target)}
    known = {task.labels[number] for number in present}
    missing = [label for label in task.problem.scored_labels(task.labels) if label not in known]
    if missing:
        raise DataError(
            f"task {task.name!r}: none of the {len(task.train)} training examples is labelled "
            f"{', '.join(map(repr, missing))}. Train on more of them (--max-train)."
        )


def _write(directory: Path, vectorizer: TfidfVectorizer, linear: Linear) -> None:
    arrays = {
        "idf": vectorizer.idf_,
        "coefficients": linear.coefficients,
        "intercepts": linear.intercepts,
    }
    # safetensors writes raw memory, and scikit-learn's arrays are column-major
    contiguous = {name: np.ascontiguousarray(a, dtype=np.float32) for name, a in arrays.items()}
    save_file(contiguous, directory / "model.safetensors")
    settings = {
        "vocabulary": {word: int(index) for word, index in sorted(vectorizer.vocabulary_.items())},
        "ngram_range": list(vectorizer.ngram_range),
        "sublinear_tf": vectorizer.sublinear_tf,
    }
    (directory / "vocabulary.json").write_text(json.dumps(settings), encoding="utf-8")
