"""`distill --vocab-size`: a student with the tokens of its texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.cli.findings import pruning_lines
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL
from bertender.models.classifier import open_classifier
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer
from bertender.training.checkpoint import weights_digest
from distill.distillation import on_task as on_task_module
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import control_of, distill
from distill.distillation.on_task import OnTask, check_task
from distill.methods import METHODS
from tests.distill.distillation.settings import OF_METHOD, SHORT
from tests.quick import quick
from tests.toy_kinds import TASKS
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


@pytest.mark.parametrize("method", quick(WHOLE_TEXTS, "bilstm", "pkd", "small-vocab"))
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
        OnTask(trained_teacher, task, DistillConfig.parse(each)).tokenizer.get_vocab()
        for each in (alone, more)
    ]
    assert [rare in each for each in tokens] == [False, True]


def test_texts_that_a_filter_leaves_out_are_not_counted(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    rare = rare_word(trained_teacher, task)
    filtered = {**with_rare_texts(rare, tmp_path), "unlabelled_max_entropy": 1e-6}
    ready = OnTask(trained_teacher, task, DistillConfig.parse(filtered))
    assert ready.added["unlabelled_texts"] == 0
    assert rare not in ready.tokenizer.get_vocab()


def test_rewritten_texts_are_counted_too(
    trained_teacher: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = rare_word(trained_teacher, task)
    copies = Split(((f"{rare} {rare}",),) * 50, (NO_LABEL,) * 50)

    def with_copies(task: Task, *others: Any) -> Task:
        examples = (*task.train.examples, *copies.examples)
        train = Split(examples, (*task.train.label_ids, *copies.label_ids))
        return replace(task, train=train)

    monkeypatch.setattr(on_task_module, "augmented", with_copies)
    settings = {**SHORT, "method": "pkd", "vocab_size": SIZE, "augmentation": "bilstm"}
    ready = OnTask(trained_teacher, task, DistillConfig.parse(settings))
    assert rare in ready.tokenizer.get_vocab()


def test_a_control_has_the_same_tokens(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    more = with_rare_texts(rare_word(trained_teacher, task), tmp_path)
    config = DistillConfig.parse({**more, "control": True})
    ready = OnTask(trained_teacher, task, config)
    controls = [
        control_of(trained_teacher, task, config, 1, tokens)[0] for tokens in (ready.tokens, None)
    ]
    mine, same, other = (weights_digest(each.student) for each in (ready, *controls))
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
    "a floor of single tokens": (
        {"method": "tinybert", "vocab_floor": 2},
        "must read the teacher's tokens",
    ),
    "a floor of all": (
        {"method": "pkd", "vocab_floor": 2, "vocab_size": "all"},
        "vocab_size=all and vocab_floor=2: the vocabulary stays whole",
    ),
    "no number": ({"vocab_size": "many"}, "vocab_size='many': give a number .* auto or all"),
    "no entry": ({"vocab_size": 0}, "vocab_size=0: give a number of entries from 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_conflict_are_refused(case: str) -> None:
    settings, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        DistillConfig.parse(settings)


KEPT_WHOLE = [name for name, task in TASKS.items() if task.problem.keeps_vocabulary]


@pytest.mark.parametrize("problem", KEPT_WHOLE)
def test_a_floor_of_a_vocabulary_that_stays_whole_is_refused(problem: str) -> None:
    settings = {"method": "pd", "student": "an-encoder", "vocab_floor": 2}
    config = DistillConfig.parse(settings)
    with pytest.raises(ConfigError, match=rf"vocab_floor=2: .*{problem}.* stays whole"):
        check_task(config, config.changed_method(), TASKS[problem])


def test_no_room_for_single_characters_is_refused(trained_teacher: Artifact, task: Task) -> None:
    config = DistillConfig.parse({**SHORT, "method": "pkd", "vocab_size": 3})
    with pytest.raises(ConfigError, match="always stay"):
        OnTask(trained_teacher, task, config)


DEFAULT_CUTS = ["pkd", "distilbert", "theseus"]
"""Whole texts are compared; single tokens are; the teacher's own layers run in its steps."""


@pytest.mark.one_path
@pytest.mark.parametrize("method", DEFAULT_CUTS)
def test_enough_texts_cut_the_vocabulary_and_change_no_output(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    cut, whole = (
        distill(
            trained_teacher,
            task,
            DistillConfig.parse({**SHORT, "method": method, **size}),
            tmp_path / str(size),
        )
        for size in ({}, {"vocab_size": "all"})
    )
    few, all_ = (load_tokenizer(each.path) for each in (cut, whole))
    assert len(few) < 0.9 * len(all_)
    characters = {token for token in all_.get_vocab() if len(token.removeprefix("##")) == 1}
    assert characters <= few.get_vocab().keys()
    texts = task.train.examples
    for (text,) in texts:
        assert few.tokenize(text) == all_.tokenize(text)
    mine, others = (open_classifier(each).logits(texts) for each in (cut, whole))
    np.testing.assert_allclose(mine, others, atol=1e-4)
    assert cut.card.config["vocab_size"] == "auto"
    assert cut.card.findings.vocabulary.whole_words >= 0.99
    assert "of the words of held-out texts stay whole" in str(pruning_lines(cut.card.findings))
    assert whole.card.findings.vocabulary is None


def test_the_card_of_a_cut_student_has_the_thresholds_of_its_model(
    teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    kind = MULTI_LABEL.name
    cut, whole = (
        distill(
            teacher_of(kind),
            TASKS[kind],
            DistillConfig.parse({**SHORT, "method": "distilbert", **size}),
            tmp_path / str(size),
        ).card.findings
        for size in ({}, {"vocab_size": "all"})
    )
    assert cut.vocabulary and cut.scores and whole.scores and whole.scores.thresholds
    assert any(whole.scores.thresholds.values())
    assert cut.scores.thresholds == pytest.approx(whole.scores.thresholds, abs=1e-4)


@pytest.mark.parametrize("method", DEFAULT_CUTS)
def test_too_few_texts_keep_the_vocabulary(
    method: str, trained_teacher: Artifact, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    few = replace(task, train=task.train.first(3))
    config = DistillConfig.parse({**SHORT, "method": method})
    ready = OnTask(trained_teacher, few, config)
    assert ready.tokens.remaining is None
    assert len(ready.tokenizer) == len(load_tokenizer(trained_teacher.path))
    assert "the vocabulary stays whole" in caplog.text and "--unlabelled" in caplog.text


def test_a_teacher_that_is_not_cached_reads_the_same_tokens(
    trained_teacher: Artifact, task: Task
) -> None:
    config = DistillConfig.parse({**SHORT, "method": "pkd", "teacher_cache_mb": 0})
    ready = OnTask(trained_teacher, task, config)
    assert ready.tokens.remaining and ready.tokens.cut_after_training


def test_a_vocabulary_that_is_needed_already_is_left_as_it_is(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = DistillConfig.parse({**SHORT, "method": "pkd"})
    student = distill(trained_teacher, task, config, tmp_path / "student")
    again = OnTask(student, task, DistillConfig.parse({**SHORT, "method": "hard", "layers": 1}))
    assert again.tokens.remaining is None
