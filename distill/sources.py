"""What a student starts from, whom it learns from, and the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.families import FAMILIES, family_name
from bertender.models.predictor import load_torch_classifier, refuse_taggers
from bertender.tasks.bad_rows import SkippedRows, stop, together
from bertender.tasks.files import read_texts
from bertender.tasks.registry import unlabelled_texts
from bertender.tasks.task import Split, Task
from bertender.text.batch import load_tokenizer
from distill.augmentation.augment import AugmentedConfig, augmented
from distill.encoders import find_encoder, load_classifier, weights_digest
from distill.losses import NO_LABEL
from distill.methods import METHODS, Method
from distill.signals import ATTENTION_SIGNALS, Signal

__all__ = [
    "Start",
    "Teacher",
    "find_start",
    "load_teachers",
    "on_device",
    "refuse_other_labels",
    "refuse_start",
    "with_augmented",
    "with_unlabelled",
]


@dataclass(frozen=True)
class Start:
    """What the student starts from: the teacher, or another encoder."""

    source: str
    model: PreTrainedModel
    digest: str
    reads_teacher_tokens: bool = True
    is_teacher: bool = False

    @property
    def depth(self) -> int:
        """How many layers it has."""
        depth: int = self.model.config.num_hidden_layers
        return depth


def find_start(teacher: Teacher, method: Method, student: str | None) -> Start:
    """Load what the student starts from: the encoder named `student`, or else the teacher.

    Raises:
        ConfigError: the method wants an encoder, and none is named.
        ModelError: it is not there, or it reads other tokens than the teacher and the method
            compares single tokens; or the teacher is of an architecture that gives no more than
            logits, and more is asked of it.
    """
    artifact = teacher.artifact
    _refuse_closed(teacher.model.config, method, student)
    _refuse_uneven_teacher(teacher.model.config, method)
    refuse_start(method, student)
    if student is None:
        _refuse_uneven_start(teacher.model.config, method)
        return Start(str(artifact.path), teacher.model, "", is_teacher=True)
    source = find_encoder(student, setting="student")
    model, tokenizer = load_classifier(source, artifact.card.task.labels)
    _refuse_uneven_start(model.config, method)
    same = tokenizer.get_vocab() == load_tokenizer(artifact.path).get_vocab()
    if method.wants_teacher_tokens and not same:
        free = [name for name, row in METHODS.items() if not row.wants_teacher_tokens]
        raise ModelError(
            f"student={student!r}: method {method.name!r} compares single tokens, so that "
            "teacher and student must read the same tokens, and these do not. Methods that compare "
            f"whole texts: {', '.join(free)}; or distilbert with weights cosine=0."
        )
    return Start(source, model, weights_digest(model), reads_teacher_tokens=same)


def refuse_start(method: Method, student: str | None) -> None:
    """Raise where a method's student cannot start from what `student` names, or from the teacher.

    Raises:
        ConfigError: the method wants an encoder, and none is named.
        ModelError: the student starts from the teacher, and another encoder is named.
    """
    if student is None and method.wants_own_start:
        raise ConfigError(
            f"method {method.name!r} wants a small pre-trained student of its own: give student, "
            "a folder, an artifact of `bertender pretrain` or `bertender distill-general`, or a "
            "hub name."
        )
    if student is not None and method.uses_teacher_layers:
        raise ModelError(
            f"student={student!r}: method {method.name!r} replaces the teacher's own layers, so "
            "that its student starts from the teacher. Leave it out."
        )


def _refuse_uneven_teacher(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where attention is read of a teacher whose heads or neurons were pruned."""
    reads_layers = bool(method.needs & ATTENTION_SIGNALS) or method.uses_teacher_layers
    if family_name(config) != config.model_type and reads_layers:
        raise ModelError(
            f"the layers of a {config.model_type!r} teacher are not alike, and method "
            f"{method.name!r} reads them. Distil the unpruned model, or choose a method that reads "
            "answers and hidden states alone, such as distilbert."
        )


def _refuse_uneven_start(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where a student would start from layers that are not alike."""
    if family_name(config) != config.model_type and method.starts_from_layers:
        raise ModelError(
            f"the layers of a {config.model_type!r} model are not alike, so that no student of "
            f"method {method.name!r} can start from it. Distil first and prune the student; or "
            "give student, an encoder that was not pruned."
        )


def _refuse_closed(config: PretrainedConfig, method: Method, student: str | None) -> None:
    """Raise ModelError where layers are wanted of a teacher that is no row of FAMILIES."""
    reads_answers_alone = method.needs <= {"logits"} and not method.uses_teacher_layers
    if family_name(config) in FAMILIES or (student and reads_answers_alone):
        return
    others = method.weights_for_answers_alone
    weights = ",".join(f"{name}=0" for name in others or ())
    own = f"{method.name} with weights {weights}" if weights else method.name
    works = own if others is not None else "distilbert with weights cosine=0"
    wants = "its layers" if method.uses_teacher_layers else _listed(method.needs - {"logits"})
    raise ModelError(
        f"of a {config.model_type!r} teacher only the answers can be learned from, since bertender "
        f"does not know its layers; method {method.name!r} wants "
        f"{wants or 'a student that starts from them'}. The nearest that works: {works}, with a "
        "student of its own: give student, an encoder's folder, packaged or hub name."
    )


def _listed(signals: frozenset[Signal]) -> str:
    return " and ".join(name.replace("_", " ") for name in sorted(signals))


def with_unlabelled(task: Task, path: Path | None, most: int = 0) -> Task:
    """Return the task with texts without labels beside its training examples.

    Bad rows are left out and listed where the task's own are. Texts that are set apart to choose
    by are left out: nothing learns from them, labelled or not.

    Args:
        task: what is learned.
        path: a file of such texts, if there is one.
        most: of those that the task brings.

    Raises:
        DataError: the file is wrong.
    """
    if path is None and not most:
        return task
    skipped, apart = SkippedRows(), set(task.selection.examples)
    bad_row = skipped if task.skips_bad_rows else stop
    read = () if path is None else read_texts(path, task.text_columns, bad_row)
    brought = unlabelled_texts(task, most) if most else ()
    texts = [text for text in (*read, *brought) if text not in apart]
    labels = (*task.train.label_ids, *(NO_LABEL for _ in texts))
    train = Split((*task.train.examples, *texts), labels)
    return replace(task, train=train, left_out=together(task.left_out, skipped.report()))


def with_augmented(
    task: Task, teachers: Sequence[Teacher], start: Start, config: AugmentedConfig
) -> Task:
    """Return the task with the rewritten texts that the config asks for.

    Raises:
        ModelError, HubUnreachableError, DamagedArtifactError: their words cannot be had, or one of
            those who read them would read something else.
    """
    first, *_ = teachers
    readers = (start.source, *(str(teacher.artifact.path) for teacher in teachers))
    return augmented(task, first.artifact, first.model, readers, config)


def refuse_other_labels(teacher: Artifact, task: Task) -> None:
    """Refuse a teacher that does not answer this task's labels in this order.

    Raises:
        ModelError: the artifact is no torch classifier, or it is a tagger.
        ConfigError: it is one for other labels.
    """
    refuse_taggers(teacher)
    if teacher.card.kind != "torch" or not teacher.card.task.labels:
        raise ModelError(
            f"{teacher.path} (kind {teacher.card.kind}, stage {teacher.card.stage}) is no "
            "classifier to learn from. Give the artifact of `bertender finetune`."
        )
    if teacher.card.task.labels != task.labels:
        raise ConfigError(
            f"the teacher {teacher.path} answers {', '.join(teacher.card.task.labels)} (task "
            f"{teacher.card.task.name!r}), and the labels of task {task.name!r} are "
            f"{', '.join(task.labels)}. Give one that was fine-tuned on this task."
        )


@dataclass(frozen=True)
class Teacher:
    """An artifact to learn from, with its model loaded."""

    artifact: Artifact
    model: PreTrainedModel

    @classmethod
    def load(cls, artifact: Artifact, task: Task) -> Self:
        """Load a classifier of the task's labels, or raise what `refuse_other_labels` does."""
        refuse_other_labels(artifact, task)
        return cls(artifact, on_device(load_torch_classifier(artifact)))


def load_teachers(first: Artifact, more: Sequence[Path], task: Task) -> tuple[Teacher, ...]:
    """Load the teacher, and those whose answers are averaged with its own.

    Raises:
        ConfigError: one answers other labels.
        ModelError, NotAnArtifactError, DamagedArtifactError: one is no classifier to learn from.
    """
    artifacts = (first, *(Artifact.load(path) for path in more))
    return tuple(Teacher.load(artifact, task) for artifact in artifacts)


def on_device(model: PreTrainedModel) -> PreTrainedModel:
    """Move a model to where it runs fastest."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)  # type: ignore[arg-type]  # its decorator hides the signature
    return model
