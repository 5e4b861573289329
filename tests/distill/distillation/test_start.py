"""Where a student starts: encoders with a vocabulary of their own, and who can teach."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import normalizers

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from distill.distillation.config import ALL_TOKENS, DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.on_task import OnTask
from distill.finetuning.baseline import train_bag_of_words
from distill.finetuning.config import BagOfWordsConfig
from distill.methods import METHODS
from distill.teachers import encoders
from distill.teachers.encoders import Teacher
from tests.distill.distillation.settings import QUICK, SHORT
from tests.toy_models import (
    other_vocabulary,
    save_artifact,
    save_encoder,
    tiny_classifier,
    with_turned_labels,
)


def test_a_roberta_teaches_a_student_with_berts_vocabulary_by_its_sentence_states(
    task: Task, tmp_path: Path
) -> None:
    teacher = save_artifact(tiny_classifier("roberta"), task, tmp_path / "teacher")
    encoder = other_vocabulary(tmp_path / "encoder")
    settings = {**QUICK, "method": "pkd", "weights": {"soft": 0, "hard": 0}}
    config = DistillConfig(**settings, student=str(encoder), vocab_size=ALL_TOKENS)
    student = distill(teacher, task, config, tmp_path / "student")
    first, *_, last = (parts["patience"] for parts in student.card.findings.training.losses)
    assert student.card.family == "bert" and last < 0.5 * first
    ours, theirs = (load_tokenizer(path).get_vocab() for path in (student.path, encoder))
    assert ours == theirs != load_tokenizer(teacher.path).get_vocab()


def test_a_student_may_start_from_another_encoder_with_its_own_vocabulary(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    encoder = other_vocabulary(tmp_path / "encoder")
    logits = {"method": "distilbert", "weights": {"cosine": 0, "hard": 0}}
    config = DistillConfig(**QUICK, student=str(encoder), vocab_size=ALL_TOKENS, **logits)
    student = distill(trained_teacher, task, config, tmp_path / "student")
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.9, (
        "it learned from answers alone"
    )
    ours, theirs = (load_tokenizer(path).get_vocab() for path in (student.path, encoder))
    assert ours == theirs != load_tokenizer(trained_teacher.path).get_vocab()


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].wants_teacher_tokens])
def test_methods_that_compare_tokens_want_the_same_ones(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    encoder = other_vocabulary(tmp_path / "encoder")
    config = DistillConfig(method=method, student=str(encoder), layers=2)
    own_layers = "replaces the teacher's own layers"
    same_tokens = "must read the same tokens.*Methods that.*hard.*pkd"
    said = own_layers if METHODS[method].uses_teacher_layers else same_tokens
    with pytest.raises(ModelError, match=said):
        distill(trained_teacher, task, config, tmp_path / "student")


def test_another_treatment_of_letters_makes_other_tokens(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """The student would learn from tokens that it does not get later."""
    encoder = save_encoder("bert", tmp_path / "encoder")
    same = DistillConfig(method="minilm", student=str(encoder), layers=2)
    assert OnTask(trained_teacher, task, same).texts.start.reads_teacher_tokens
    tokenizer = load_tokenizer(encoder)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("apple", "pear")
    tokenizer.save_pretrained(encoder)
    with pytest.raises(ModelError, match="must read the same tokens"):
        OnTask(trained_teacher, task, same)


def test_a_teacher_of_other_labels_is_refused(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    for labels in (("tool", "fruits"), ("a", "b", "c")):
        with pytest.raises(ConfigError, match="Give one that was fine-tuned on this task"):
            distill(
                trained_teacher, replace(task, labels=labels), DistillConfig(), tmp_path / "out"
            )


def test_a_student_has_the_order_of_its_task(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    """It starts from the weights of a teacher with another."""
    turned = with_turned_labels(trained_teacher, task, tmp_path / "turned")
    plain, other = (
        distill(each, task, DistillConfig(**SHORT), tmp_path / f"of-{each.name}")
        for each in (trained_teacher, turned)
    )
    config = json.loads((other.path / "config.json").read_text())
    assert tuple(config["id2label"].values()) == other.card.task.labels == task.labels
    one, two = (open_classifier(each).logits(task.dev.examples[:8]) for each in (plain, other))
    np.testing.assert_allclose(one, two, atol=1e-4)


def test_a_tokenizer_that_numbers_labels_keeps_their_order(
    trained_teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = with_turned_labels(trained_teacher, task, tmp_path / "turned")
    monkeypatch.setattr(encoders, "continued_labels", lambda tokenizer: (0, 2, 2))
    with pytest.raises(ConfigError, match="Its tokenizer numbers them too"):
        Teacher.load(turned, task)


def test_only_a_torch_classifier_is_a_teacher(task: Task, tmp_path: Path) -> None:
    words = train_bag_of_words(task, BagOfWordsConfig(), tmp_path / "words")
    with pytest.raises(ModelError, match=r"kind bag-of-words.*not a trained classifier"):
        distill(words, task, DistillConfig(), tmp_path / "out")
