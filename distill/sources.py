"""What a student starts from, and the texts that it learns from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.core.examples import TokenDataset
from bertender.core.text import load_tokenizer
from bertender.core.training import TrainingConfig, computes_in_bf16
from bertender.tasks.files import read_texts
from bertender.tasks.task import Split, Task
from distill.data import token_dataset
from distill.encoders import find_encoder, load_classifier, weights_digest
from distill.losses import NO_LABEL
from distill.methods import METHODS, Method
from distill.teacher import teacher_logits

__all__ = ["Start", "find_start", "student_examples", "with_unlabelled"]


@dataclass(frozen=True)
class Start:
    """What the student starts from: the teacher, or another encoder."""

    source: str
    model: PreTrainedModel
    digest: str


def find_start(
    teacher: Artifact,
    teacher_model: PreTrainedModel,
    method: Method,
    student: str | None,
) -> Start:
    """Load what the student starts from: the encoder named `student`, or else the teacher.

    Raises:
        ModelError: it is not there, or it reads other tokens than the teacher and the method
            compares more than logits.
    """
    if student is None:
        return Start(str(teacher.path), teacher_model, "")
    source = find_encoder(student)
    model, tokenizer = load_classifier(source, teacher.card.task.labels)
    same = tokenizer.get_vocab() == load_tokenizer(teacher.path).get_vocab()
    if method.uses_teacher_layers or (method.wants_teacher_tokens and not same):
        free = [name for name, row in METHODS.items() if not row.wants_teacher_tokens]
        raise ModelError(
            f"student={student!r}: method {method.name!r} compares more than logits, so "
            "that teacher and student must read the same tokens, and these do not. Methods that "
            f"compare logits alone: {', '.join(free)}; or distilbert with weights cosine=0."
        )
    return Start(source, model, weights_digest(model))


def with_unlabelled(task: Task, method: Method, path: Path | None) -> Task:
    """Return the task with texts without labels beside its training examples.

    Raises:
        ConfigError: the method learns from labels alone.
        DataError: the file is wrong.
    """
    if path is None:
        return task
    if not method.needs:
        raise ConfigError(
            f"unlabelled={str(path)!r}: method {method.name!r} learns from labels alone, which "
            "these texts do not have. Leave it out, or choose a method that needs the teacher."
        )
    texts = read_texts(path, task.text_columns)
    labels = (*task.train.label_ids, *(NO_LABEL for _ in texts))
    return replace(task, train=Split((*task.train.examples, *texts), labels))


def student_examples(
    method: Method,
    model: PreTrainedModel,
    teacher: Artifact,
    start: Start,
    task: Task,
    config: TrainingConfig,
) -> TokenDataset:
    """Tokenise the texts for the student, with the teacher's logits where the method reads them."""
    examples = token_dataset(task.train, load_tokenizer(Path(start.source)), config.max_length)
    if "logits" not in method.needs:
        return examples
    asked = token_dataset(task.train, load_tokenizer(teacher.path), config.max_length)
    logits = teacher_logits(model, teacher.digest, asked, computes_in_bf16(config))
    columns = {**examples.columns, "teacher_logits": logits.tolist()}
    return TokenDataset(columns, examples.pad_token_id)
