"""The bag of words: TF-IDF with logistic regression, the control that a teacher must beat."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from bertender.comparison.accuracy import check_varied, found_constant
from bertender.core.artifact import Artifact, new_artifact
from bertender.core.errors import DataError
from bertender.core.findings import Findings, ScoreFindings
from bertender.metrics import score
from bertender.tasks.task import Split, Task
from distill.finetuning.config import BagOfWordsConfig


def train_bag_of_words(task: Task, config: BagOfWordsConfig, out: Path) -> Artifact:
    """Fit the baseline on a task's training examples; write its words as JSON, its numbers as
    safetensors. It is compared like any artifact; it cannot be exported or served.

    Raises:
        DataError: a label has no training example.
        ConstantError: it has learned nothing but one label.
    """
    check_labels_present(task)
    vectorizer = TfidfVectorizer(ngram_range=(1, config.longest_ngram), sublinear_tf=True)
    features = vectorizer.fit_transform(_texts(task.train))
    model = LogisticRegression(
        C=config.inverse_regularisation, max_iter=1000, random_state=config.seed
    )
    model.fit(features, task.train.label_ids)
    predictions = model.predict(vectorizer.transform(_texts(task.dev)))
    label_count, labels = len(task.labels), task.labels
    measured = score(
        task.metric, task.dev.label_ids, predictions, label_count=label_count, labels=labels
    )
    constant = found_constant(task, task.dev, predictions)
    scores = ScoreFindings(chosen_on=task.chosen_on, score=measured.value, constant=constant)
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
        _write(draft.directory, vectorizer, model)
        parameters = int(model.coef_.size + model.intercept_.size)
        draft.findings = Findings(parameters=parameters, scores=scores)
    return Artifact.load(out)


def _texts(split: Split) -> list[str]:
    return [" ".join(example) for example in split.examples]


def check_labels_present(task: Task) -> None:
    """Raise DataError unless every label has a training example: the baseline learns no other."""
    present = set(task.train.label_ids)
    missing = [label for index, label in enumerate(task.labels) if index not in present]
    if missing:
        raise DataError(
            f"task {task.name!r}: none of the {len(task.train)} training examples is labelled "
            f"{', '.join(map(repr, missing))}. Train on more of them (--max-train)."
        )


def _write(directory: Path, vectorizer: TfidfVectorizer, model: LogisticRegression) -> None:
    coefficients, intercepts = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # scikit-learn keeps one row, for the second class
        coefficients = np.vstack([-coefficients / 2, coefficients / 2])
        intercepts = np.concatenate([-intercepts / 2, intercepts / 2])
    arrays = {
        "idf": vectorizer.idf_,
        "coefficients": coefficients,
        "intercepts": intercepts,
    }
    # safetensors writes memory as it lies, and scikit-learn's arrays lie column by column
    contiguous = {name: np.ascontiguousarray(a, dtype=np.float32) for name, a in arrays.items()}
    save_file(contiguous, directory / "model.safetensors")
    settings = {
        "vocabulary": {word: int(index) for word, index in sorted(vectorizer.vocabulary_.items())},
        "ngram_range": list(vectorizer.ngram_range),
        "sublinear_tf": vectorizer.sublinear_tf,
    }
    (directory / "vocabulary.json").write_text(json.dumps(settings), encoding="utf-8")
