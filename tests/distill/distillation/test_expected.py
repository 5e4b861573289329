"""What is known of a student before its teacher is trained, held against the student itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import BertenderError
from bertender.models.own_models import OWN_MODELS, ExpectedModel, expected_on_disk
from bertender.tasks.task import Task
from distill.distillation.config import DistillConfig, GeneralConfig
from distill.distillation.general import GeneralTeacher, OnCorpus, expected_general_student
from distill.distillation.start import check_start, expected_student, new_student
from distill.methods import GENERAL_METHODS, METHODS
from distill.teachers.encoders import Teacher
from tests.toy_models import (
    BERT_SHAPE,
    OWN_SHAPES,
    SHAPES,
    UNKNOWN,
    save_artifact,
    save_encoder,
    save_language_model,
    tiny_classifier,
)
from tests.toys import FRUIT, TOOLS

OWN_START = [name for name, row in METHODS.items() if row.student.wants_own_start]
OWN_VOCABULARY = [name for name, row in GENERAL_METHODS.items() if row.student.own_vocabulary]
SHAPES_OF_STUDENTS: tuple[dict[str, Any], ...] = (
    {},
    {"layers": 9},
    {"layers": 4},
    {"hidden_size": 48},
    {"hidden_size": 48, "heads": 4},
    {"hidden_size": 20},
    {"heads": 3},
    {"feed_forward_size": 24},
    {"teacher_layers": "1,3"},
    {"teacher_layers": "1,7"},
    {"relation_heads": 8},
    {"relation_heads": 5},
)


def outcome(make: Callable[..., PreTrainedModel], *arguments: Any) -> Any:
    """Return the shape of what is made, or the error of what cannot be."""
    try:
        student = make(*arguments)
    except BertenderError as error:
        return type(error), str(error)
    return shape_of(student)


OF_FILES = ("_name_or_path", "architectures", "dtype", "id2label", "label2id", "pad_token_id")
"""Settings of a config that a shape does not depend on."""


def shape_of(model: PreTrainedModel) -> dict[str, Any]:
    settings = model.config.to_dict()
    return {name: value for name, value in settings.items() if name not in OF_FILES}


def teachers() -> Iterator[PreTrainedModel]:
    """Yield a tiny classifier of each architecture, and of one that is no row of FAMILIES."""
    for model_type in (*SHAPES, *OWN_SHAPES):
        yield tiny_classifier(model_type)
    yield tiny_classifier(UNKNOWN, **BERT_SHAPE)


def expected(config: DistillConfig, teacher: PreTrainedModel, start: Any = None) -> PreTrainedModel:
    known = ExpectedModel.of(teacher.config)
    assert known is not None
    student = expected_student(config, known, start)
    assert student is not None and student.shape_known
    return student.model


def built(config: DistillConfig, teacher: Teacher, task: Task) -> PreTrainedModel:
    """Return the student that the step builds."""
    check_start(config.changed_method(), config.student)
    _, student = new_student(teacher, config.changed_method(), task, config)
    return student


def built_on_corpus(
    config: GeneralConfig, teacher: GeneralTeacher, passages: list[str]
) -> PreTrainedModel:
    return OnCorpus(teacher, passages, config).student


def expected_on_corpus(config: GeneralConfig, teacher: ExpectedModel | None) -> PreTrainedModel:
    student = expected_general_student(config, teacher)
    assert student is not None and student.shape_known
    return student.model


@pytest.mark.one_path
@pytest.mark.parametrize("method", [name for name in METHODS if name not in OWN_START])
def test_every_architecture_is_refused_as_the_step_refuses_it(
    method: str, teacher: Artifact, task: Task
) -> None:
    settings = {"relation_heads": 8} if method == "minilm-v2" else {}
    config = DistillConfig.parse({"method": method, **settings})
    kind = METHODS[method].student.model_type
    for model in teachers():
        real = outcome(built, config, Teacher(teacher, model), task)
        assert outcome(expected, config, model) == real, model.config.model_type
        if isinstance(real, dict) and kind is not None:
            assert real["model_type"] == kind


@pytest.mark.one_path
@pytest.mark.parametrize("method", [name for name in METHODS if name not in OWN_START])
def test_every_shape_is_refused_as_the_step_refuses_it(
    method: str, teacher: Artifact, task: Task
) -> None:
    model = tiny_classifier("bert")
    for settings in SHAPES_OF_STUDENTS:
        try:
            config = DistillConfig.parse({"method": method, **settings})
        except BertenderError:
            continue  # of whatever teacher
        real = outcome(built, config, Teacher(teacher, model), task)
        assert outcome(expected, config, model) == real, settings


@pytest.mark.one_path
@pytest.mark.parametrize("method", METHODS)
def test_every_start_is_refused_as_the_step_refuses_it(
    method: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    model = tiny_classifier("bert")
    starts = [Path(save_encoder(name, tmp_path / name)) for name in ("bert", "mobilebert")]
    starts += [
        save_artifact(tiny_classifier(name), task, tmp_path / name).path
        for name in ("bertender-bilstm", "bertender-pruned-bert")
    ]
    for start in starts:
        config = DistillConfig(method=method, student=str(start), layers=1)
        real = outcome(built, config, Teacher(teacher, model), task)
        if METHODS[method].uses_teacher_layers:
            assert real[1].startswith("student="), "the settings alone show it"
            continue
        known = expected_on_disk(start)
        found = outcome(expected, config, model, known)
        assert found == real, start.name


@pytest.mark.one_path
@pytest.mark.parametrize("method", GENERAL_METHODS)
def test_a_general_teacher_is_refused_as_the_step_refuses_it(method: str, tmp_path: Path) -> None:
    words = (*FRUIT, *TOOLS)
    passages = [f"{words[row % 12]} {words[row * 5 % 12]} number {row}" for row in range(240)]
    source = str(save_language_model(tmp_path / "bert"))
    known = expected_on_disk(source)
    for settings in ({}, {"layers": 2}, {"layers": 9}, {"hidden_size": 48, "heads": 4}):
        try:
            config = GeneralConfig.parse({"method": method, "teacher": source, **settings})
        except BertenderError:
            continue
        general = GeneralTeacher.load(source, config.changed_method())
        real = outcome(built_on_corpus, config, general, passages)
        found = outcome(expected_on_corpus, config, known)
        if method in OWN_VOCABULARY and isinstance(real, dict):
            real["vocab_size"] = found["vocab_size"]  # it is not trained yet
        assert found == real, settings


@pytest.mark.parametrize("method", METHODS)
def test_of_an_unknown_teacher_no_more_is_known_than_the_kind(method: str) -> None:
    settings = {"student": "somewhere"} if method in OWN_START else {}
    student = expected_student(DistillConfig(method=method, **settings), None, None)
    kind = METHODS[method].student.model_type
    assert (student and student.model.config.model_type) == kind
    assert student is None or not student.shape_known


@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_MODELS])
def test_an_architecture_may_be_all_that_is_known(model_type: str) -> None:
    known = ExpectedModel.of_type(model_type)
    assert known is not None and known.model.config.model_type == model_type
    assert not known.shape_known and known.model.device.type == "meta"


def test_what_is_not_on_this_machine_is_unknown(tmp_path: Path) -> None:
    assert expected_on_disk("nobody/nothing") is None
    assert expected_on_disk(tmp_path) is None
