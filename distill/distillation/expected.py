"""The student of a distillation that has not begun, built without weights."""

from __future__ import annotations

from transformers import AutoModelForMaskedLM, PreTrainedModel

from bertender.models.own_models import ExpectedModel, without_weights
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distillation import check_compatible
from distill.distillation.general import GeneralTeacher, check_general_teacher, new_general_student
from distill.distillation.general_config import GeneralConfig
from distill.distillation.on_task import check_not_copy
from distill.distillation.start import build_student, check_even_start, check_teacher
from distill.methods.method import Method
from distill.pretraining.vocabularies import stand_in_tokenizer
from distill.students.student import StudentKind


def expected_student(
    config: DistillConfig, teacher: ExpectedModel | None, start: ExpectedModel | None
) -> ExpectedModel | None:
    """Return the student of a teacher on a task, as far as it is known.

    Args:
        config: the settings of `distill`.
        teacher: as far as it is known.
        start: what `config.student` names, likewise; None where it names nothing.

    Raises:
        ConfigError, ModelError: what `distill` raises of these models.
    """
    method = config.changed_method()
    if teacher is not None:
        check_teacher(teacher.model.config, method, config.student)
    source = teacher if config.student is None else start
    if source is not None:
        check_even_start(source.model.config, method)
    if source is None or not source.shape_known:
        return _of_kind(method.student)
    own_start, model = config.student is not None, source.model
    student = without_weights(lambda: build_student(model, method, config, own_start=own_start))
    if student is None:
        return _of_kind(method.student)
    if teacher is not None and teacher.shape_known:
        check_compatible(method, student, teacher.model)
        if not own_start:
            check_not_copy(student, teacher.model, config)
    return ExpectedModel.of(student.config)


def expected_general_student(
    config: GeneralConfig, teacher: ExpectedModel | None
) -> ExpectedModel | None:
    """Return the student of a teacher on a corpus, as far as it is known.

    Raises:
        ConfigError, ModelError: what `distill-general` raises of this teacher.
    """
    method = config.changed_method()
    if teacher is not None:
        check_general_teacher(teacher.model.config, method)
    if teacher is None or not teacher.shape_known:
        return _of_kind(method.student)
    student = without_weights(lambda: _general_student(config, method, teacher.model))
    return _of_kind(method.student) if student is None else ExpectedModel.of(student.config)


def _general_student(
    config: GeneralConfig, method: Method, teacher: PreTrainedModel
) -> PreTrainedModel:
    language_model = None
    if method.predicts_words:
        language_model = AutoModelForMaskedLM.from_config(teacher.config, trust_remote_code=False)
    general = GeneralTeacher(config.teacher, teacher, language_model)
    tokenizer = stand_in_tokenizer() if method.student.own_vocabulary else None
    student = new_general_student(general, method, config, tokenizer)
    check_compatible(method, student, general.model)
    return student


def _of_kind(kind: StudentKind) -> ExpectedModel | None:
    """Return a student of which no more is known than its kind."""
    return None if kind.model_type is None else ExpectedModel.of_type(kind.model_type)
