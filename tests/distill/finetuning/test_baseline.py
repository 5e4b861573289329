"""The bag of words: what is read back answers as scikit-learn does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from bertender.comparison.accuracy import evaluate
from bertender.core.errors import DataError, ModelError
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Split, Task
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig
from export.config import ExportConfig
from export.exporter import export
from tests.toy_heads import TWO_OF_TEXTS
from tests.toys import pair_task, three_kinds, toy_task

TASKS = {"two labels": toy_task(), "three labels": three_kinds(), "pairs": pair_task()}


@pytest.mark.parametrize("name", TASKS)
def test_the_artifact_answers_as_scikit_learn(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    artifact = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    logits = open_classifier(artifact).logits(task.dev.examples)

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    features = vectorizer.fit_transform([" ".join(example) for example in task.train.examples])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(features, task.train.label_ids)
    dev = vectorizer.transform([" ".join(example) for example in task.dev.examples])
    np.testing.assert_allclose(softmax(logits, axis=1), model.predict_proba(dev), atol=1e-5)


def test_it_learns_the_words_of_the_toy_task(task: Task, tmp_path: Path) -> None:
    artifact = train_bag_of_words(task, BagOfWordsConfig(longest_ngram=1), tmp_path / "words")
    score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
    assert score.value == 1.0


def test_equal_work_gives_equal_artifacts(task: Task, tmp_path: Path) -> None:
    first, second = (
        train_bag_of_words(task, BagOfWordsConfig(), tmp_path / name) for name in ("a", "b")
    )
    assert first.digest == second.digest


def test_a_label_without_examples_is_refused(task: Task, tmp_path: Path) -> None:
    fruit_only = Split(task.train.examples[::2], task.train.label_ids[::2])
    with pytest.raises(DataError, match="none of the 48 training examples is labelled 'tool'"):
        train_bag_of_words(replace(task, train=fruit_only), BagOfWordsConfig(), tmp_path / "words")


def test_each_head_has_its_own_on_the_texts_that_it_labels(tmp_path: Path) -> None:
    task = TWO_OF_TEXTS
    artifact = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    score, _ = evaluate(open_classifier(artifact), task.dev, task.metric)
    assert score.value > 0.9
    wrong = replace(task.train, label_ids=tuple((0, (NO_LABEL,)) for _ in task.train.label_ids))
    with pytest.raises(DataError, match="is labelled 'length:long', 'topics:"):
        train_bag_of_words(replace(task, train=wrong), BagOfWordsConfig(), tmp_path / "other")


def test_it_cannot_be_exported(task: Task, tmp_path: Path) -> None:
    artifact = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    with pytest.raises(ModelError, match=r"kind 'bag-of-words'.*only torch classifiers"):
        export(artifact, task, ExportConfig(), tmp_path / "onnx")
