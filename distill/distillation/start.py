"""The start of a student: its teacher, or another encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, ModelError
from bertender.models.families import FAMILIES, family_name
from bertender.problems.problem import Problem
from bertender.tasks.task import Task
from bertender.text.tokenizer import load_tokenizer
from bertender.training.checkpoint import tensors_digest
from distill.distillation.config import StudentConfig
from distill.distillation.distillation import check_compatible
from distill.losses.signals import ATTENTION_SIGNALS, Signal
from distill.methods import METHODS
from distill.methods.method import Method
from distill.teachers.encoders import find_encoder, load_classifier
from distill.teachers.teacher import Teacher
from distill.tokenizers import TokenUse, fitting_tokenizer, token_use
from distill.trained import Tensors, load_projections


@dataclass(frozen=True)
class Start:
    """Source that the student starts from: the teacher, or another encoder."""

    source: str
    model: PreTrainedModel
    digest: str
    reads_teacher_tokens: bool = True
    is_teacher: bool = False
    projections: Tensors = field(default_factory=dict)
    """What brought the states of this encoder to its own teacher's width."""


def start_student(
    teacher: Teacher,
    method: Method,
    config: StudentConfig,
    encoder: str | None,
    task: Task,
    *,
    head: Callable[[PreTrainedModel], PreTrainedModel] = lambda student: student,
) -> tuple[Start, PreTrainedModel]:
    """Return where a student starts, and the student, untrained.

    Args:
        teacher: what it learns from, and starts from where there is no `encoder`.
        method: its student and terms.
        config: the shape.
        encoder: the one that the student starts from instead, by name.
        task: how many texts an example has, and those whose tokens some kinds count.
        head: puts another head on the method's student.

    Raises:
        ConfigError, ModelError: what `find_start` raises; or no such student can be made of it, or
            the method cannot compare it with this teacher.
    """
    torch.manual_seed(config.seed)  # what the student does not take from elsewhere is random
    start = find_start(teacher, method, encoder, task.problem)
    counts = method.student.counts_tokens
    student = build_student(
        start.model,
        method,
        config,
        texts=len(task.text_columns),
        own_start=not start.is_teacher,
        tokens=_token_use(start, task) if counts else None,
    )
    student = head(student)
    check_compatible(method, student, teacher.model)
    return start, student


def build_student(
    start: PreTrainedModel,
    method: Method,
    config: StudentConfig,
    *,
    texts: int = 1,
    own_start: bool = False,
    tokens: TokenUse | None = None,
) -> PreTrainedModel:
    """Build the student of a config, untrained, under a head that labels texts.

    Args:
        start: what it starts from.
        method: its student.
        config: the shape.
        texts: of an example.
        own_start: whether `start` is an encoder of the student's own, not the teacher.
        tokens: of the texts, for a kind that counts them.

    Raises:
        ModelError: no such student can be made of this start.
    """
    depth: int = start.config.num_hidden_layers
    shape = config.shape(method, depth, texts, own_start=own_start)
    return method.build(start, replace(shape, tokens=tokens))


def _token_use(start: Start, task: Task) -> TokenUse:
    tokenizer = fitting_tokenizer(start.source, start.model, finished=start.is_teacher)
    return token_use(tokenizer, task.train.examples)


def find_start(
    teacher: Teacher, method: Method, student: str | None, problem: Problem[Any]
) -> Start:
    """Load what the student starts from: the encoder named `student`, or else the teacher.

    An encoder is read as the problem's teachers are: its tokenizer has the settings of theirs.

    Raises:
        ConfigError: the method wants an encoder, and none is named.
        ModelError: it is not there, or its projections are damaged; or it reads other tokens than
            the teacher and the method compares single tokens; or the teacher is of an architecture
            that gives no more than logits, and more is asked of it.
    """
    artifact = teacher.artifact
    check_teacher(teacher.model.config, method, student)
    check_start(method, student)
    if student is None:
        check_even_start(teacher.model.config, method)
        return Start(str(artifact.path), teacher.model, "", is_teacher=True)
    source = find_encoder(student, setting="student")
    model, tokenizer = load_classifier(source, artifact.card.task.labels, problem)
    check_even_start(model.config, method)
    same = _read_alike(tokenizer, load_tokenizer(artifact.path))
    if method.wants_teacher_tokens and not same:
        free = [name for name, row in METHODS.items() if not row.wants_teacher_tokens]
        raise ModelError(
            f"student={student!r}: method {method.name!r} compares single tokens, so that "
            "teacher and student must read the same tokens, and these do not. Methods that compare "
            f"whole texts: {', '.join(free)}; or distilbert with weights cosine=0."
        )
    projections = load_projections(source, method.name)
    weights = {**model.base_model.state_dict(), **projections}
    digest = tensors_digest(weights)
    return Start(source, model, digest, reads_teacher_tokens=same, projections=projections)


def _read_alike(tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Return whether two tokenizers have the same tokens, and put the same around texts."""
    around = [each("a", "b")["input_ids"] for each in (tokenizer, other)]
    return tokenizer.get_vocab() == other.get_vocab() and around[0] == around[1]


def check_start(method: Method, student: str | None) -> None:
    """Raise where a method's student cannot start from what `student` names, or from the teacher.

    Raises:
        ConfigError: the method wants an encoder, and none is named.
        ModelError: the student starts from the teacher, and another encoder is named.
    """
    if student is None and method.student.wants_own_start:
        raise ConfigError(
            f"method {method.name!r} needs a small pre-trained student of its own: give student, "
            "a folder, an artifact of `bertender pretrain` or `bertender distill-general`, or a "
            "hub name."
        )
    if student is not None and method.uses_teacher_layers:
        raise ModelError(
            f"student={student!r}: method {method.name!r} replaces the teacher's own layers, so "
            "that its student starts from the teacher. Leave it out."
        )


def check_teacher(config: PretrainedConfig, method: Method, student: str | None) -> None:
    """Raise ModelError where a method reads more of a teacher than its architecture gives."""
    _check_layers_known(config, method, student)
    check_even_teacher(config, method)


def check_even_teacher(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where attention is read of a teacher whose heads or neurons were pruned."""
    reads_layers = bool(method.needs & ATTENTION_SIGNALS) or method.uses_teacher_layers
    if family_name(config) != config.model_type and reads_layers:
        raise ModelError(
            f"the layers of a {config.model_type!r} teacher are not alike, and method "
            f"{method.name!r} reads them. Distil the unpruned model, or choose a method that reads "
            "logits and hidden states alone, such as distilbert."
        )


def check_even_start(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where a student would start from layers that are not alike."""
    if family_name(config) != config.model_type and method.student.starts_from_layers:
        raise ModelError(
            f"the layers of a {config.model_type!r} model are not alike, so that no student of "
            f"method {method.name!r} can start from it. Distil first and prune the student; or "
            "give student, an encoder that was not pruned."
        )


def _check_layers_known(config: PretrainedConfig, method: Method, student: str | None) -> None:
    """Raise ModelError where layers are read of a teacher that is not a row of FAMILIES."""
    reads_logits_alone = method.needs <= {"logits"} and not method.uses_teacher_layers
    if family_name(config) in FAMILIES or (student and reads_logits_alone):
        return
    others = method.weights_for_logits_alone
    weights = ",".join(f"{name}=0" for name in others or ())
    own = f"{method.name} with weights {weights}" if weights else method.name
    works = own if others is not None else "distilbert with weights cosine=0"
    wants = "its layers" if method.uses_teacher_layers else _listed(method.needs - {"logits"})
    raise ModelError(
        f"of a {config.model_type!r} teacher only the logits can be learned from, since bertender "
        f"does not know its layers; method {method.name!r} needs "
        f"{wants or 'a student that starts from them'}. The nearest that works: {works}, with a "
        "student of its own: give student, an encoder's folder, packaged or hub name."
    )


def _listed(signals: frozenset[Signal]) -> str:
    return " and ".join(name.replace("_", " ") for name in sorted(signals))
