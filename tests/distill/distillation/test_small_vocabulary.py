"""`distill --vocab-size`: a student that learns with fewer tokens from its first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.opening import open_classifier
from bertender.report.heads import pruning_lines
from bertender.tasks.task import Split, Task
from bertender.text.batch import load_tokenizer
from bertender.training.weights import weights_digest
from distill.distillation import on_task as on_task_module
from distill.distillation.control import control_of
from distill.distillation.distiller import DistillConfig, distill
from distill.distillation.on_task import on_task
from distill.losses import NO_LABEL
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


def rare_word(teacher: Artifact, task: Task) -> str:
    """Return a token that no training text has, and that is no single character."""
    whole = load_tokenizer(teacher.path)
    known = {token for (text,) in task.train.examples for token in whole.tokenize(text)}
    words = (token for token in sorted(whole.get_vocab()) if token.isalpha() and len(token) > 1)
    return next(token for token in words if token not in known)


def with_rare_texts(rare: str, folder: Path) -> dict[str, Any]:
    """Return the settings of texts without labels that have a rare word."""
    (folder / "more.txt").write_text("".join(f"{rare} {number} {rare}\n" for number in range(50)))
    return {**SHORT, "method": "pkd", "vocab_size": SIZE, "unlabelled": folder / "more.txt"}


def test_texts_without_labels_are_counted_too(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    rare = rare_word(trained_teacher, task)
    more = with_rare_texts(rare, tmp_path)
    alone = {name: value for name, value in more.items() if name != "unlabelled"}
    tokens = [
        on_task(trained_teacher, task, DistillConfig.parse(each)).distillation.tokenizer.get_vocab()
        for each in (alone, more)
    ]
    assert [rare in each for each in tokens] == [False, True]


def test_texts_that_a_filter_leaves_out_are_not_counted(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    rare = rare_word(trained_teacher, task)
    filtered = {**with_rare_texts(rare, tmp_path), "unlabelled_max_entropy": 1e-6}
    ready = on_task(trained_teacher, task, DistillConfig.parse(filtered))
    assert ready.added["unlabelled_texts"] == 0
    assert rare not in ready.distillation.tokenizer.get_vocab()


def test_rewritten_texts_are_counted_too(
    trained_teacher: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = rare_word(trained_teacher, task)
    copies = Split(((f"{rare} {rare}",),) * 50, (NO_LABEL,) * 50)

    def with_copies(task: Task, *others: Any) -> Task:
        examples = (*task.train.examples, *copies.examples)
        train = Split(examples, (*task.train.label_ids, *copies.label_ids))
        return replace(task, train=train)

    monkeypatch.setattr(on_task_module, "with_augmented", with_copies)
    settings = {**SHORT, "method": "pkd", "vocab_size": SIZE, "augmentation": "bilstm"}
    ready = on_task(trained_teacher, task, DistillConfig.parse(settings))
    assert rare in ready.distillation.tokenizer.get_vocab()


def test_a_control_has_the_same_tokens(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    more = with_rare_texts(rare_word(trained_teacher, task), tmp_path)
    config = DistillConfig.parse({**more, "control": True})
    ready = on_task(trained_teacher, task, config)
    controls = [
        control_of(trained_teacher, task, config, 1, tokens)[0] for tokens in (ready.tokens, None)
    ]
    mine, same, other = (weights_digest(each.distillation.student) for each in (ready, *controls))
    assert mine == same != other, "its own texts need other tokens"


def test_the_artifact_has_how_held_out_texts_are_read(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig.parse({**SHORT, "method": "pkd", "vocab_size": SIZE})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    vocabulary = student.card.findings.vocabulary
    assert vocabulary is not None
    assert vocabulary.after.entries == len(load_tokenizer(student.path)) <= SIZE
    assert vocabulary.before.entries == len(load_tokenizer(trained_teacher.path))
    assert f"vocabulary: {vocabulary.after.entries} of {vocabulary.before.entries}" in str(
        pruning_lines(student.card.findings)
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "single tokens": ({"method": "tinybert", "vocab_size": 60}, "must read the teacher's tokens"),
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
