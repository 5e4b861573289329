"""`distill --vocab-size`: a student that learns with fewer tokens from its first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.opening import open_classifier
from bertender.tasks.task import Task
from bertender.text.batch import load_tokenizer
from bertender.training.weights import weights_digest
from distill.distillation.control import control_of
from distill.distillation.distiller import DistillConfig, distill
from distill.distillation.on_task import on_task
from distill.methods import METHODS
from tests.distill.distillation.settings import OF_METHOD, SHORT
from tests.toy_models import save_encoder

SIZE = 60
WHOLE_TEXTS = [
    name for name, row in METHODS.items() if not row.wants_teacher_tokens and not row.predicts_words
]


def settings_of(method: str, tmp_path: Path) -> dict[str, Any]:
    settings = {**SHORT, **OF_METHOD.get(method, {}), "method": method, "vocab_size": SIZE}
    if METHODS[method].student.wants_own_start:
        settings["student"] = str(save_encoder("bert", tmp_path / "encoder"))
    return settings


@pytest.mark.parametrize("method", WHOLE_TEXTS)
def test_the_student_has_the_tokens_of_its_texts(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig.parse(settings_of(method, tmp_path))
    student = distill(trained_teacher, task, config, tmp_path / "student")
    tokenizer = load_tokenizer(student.path)
    assert len(tokenizer) <= SIZE < len(load_tokenizer(trained_teacher.path))
    classifier = open_classifier(student)
    assert len(classifier.logits(task.dev.examples)) == len(task.dev)


def test_texts_without_labels_are_counted_too(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    whole = load_tokenizer(trained_teacher.path)
    known = {token for (text,) in task.train.examples for token in whole.tokenize(text)}
    rare = next(
        token for token in sorted(whole.get_vocab()) if token.isalpha() and token not in known
    )
    (tmp_path / "more.txt").write_text(f"{rare} {rare}\n" * 50)
    settings = {**SHORT, "method": "pkd", "vocab_size": SIZE}
    more = {"unlabelled": tmp_path / "more.txt"}
    without, with_it = (
        on_task(trained_teacher, task, DistillConfig.parse({**settings, **each}))
        for each in ({}, more)
    )
    tokenizers = [each.distillation.tokenizer.get_vocab() for each in (without, with_it)]
    assert [rare in tokens for tokens in tokenizers] == [len(rare) == 1, True]


def test_a_control_has_the_same_tokens(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("zzz qqq\n" * 50)
    more = {"unlabelled": tmp_path / "more.txt", "control": True}
    config = DistillConfig.parse({**SHORT, "method": "pkd", "vocab_size": SIZE, **more})
    ready = on_task(trained_teacher, task, config)
    control, _ = control_of(trained_teacher, task, config, 1, ready.tokens)
    students = [each.distillation.student for each in (ready, control)]
    assert weights_digest(students[0]) == weights_digest(students[1])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "single tokens": ({"method": "tinybert", "vocab_size": 60}, "compares single tokens"),
    "a floor alone": ({"method": "pkd", "vocab_floor": 2}, "stays whole without vocab_size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_conflict_are_refused(case: str) -> None:
    settings, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        DistillConfig.parse(settings)


def test_no_room_for_single_characters_is_refused(trained_teacher: Artifact, task: Task) -> None:
    config = DistillConfig.parse({**SHORT, "method": "pkd", "vocab_size": 3})
    with pytest.raises(ConfigError, match="always stay"):
        on_task(trained_teacher, task, config)
