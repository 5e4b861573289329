"""Distilling: a student trained on what its teacher answers, by a row of METHODS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, model_validator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact
from bertender.core.distributed import on_main_process
from bertender.core.errors import ConfigError, ModelError
from bertender.core.examples import TensorBatch, TokenDataset
from bertender.core.predictor import load_torch_classifier
from bertender.core.text import load_tokenizer
from bertender.core.training import LossParts, TrainingConfig, computes_in_bf16, train
from bertender.core.work import work_directory
from bertender.tasks.task import Task
from distill.data import fitting_tokenizer, token_dataset
from distill.methods import Method, method_named
from distill.signals import Signals, read_signals
from distill.teacher import dev_score, teacher_logits, write_classifier

__all__ = ["DistillConfig", "DistillationObjective", "distill", "refuse_other_labels"]


def _numbers(value: Any) -> Any:
    """Read "1,3,5" as its numbers."""
    return tuple(value.split(",")) if isinstance(value, str) else value


def _named_numbers(value: Any) -> Any:
    """Read "soft=0.7,hard=0.3" as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",")]
    return {name.strip(): number for name, _, number in pairs}


def _known(name: str) -> str:
    return method_named(name).name


class DistillConfig(TrainingConfig):
    """How to make a student."""

    method: Annotated[str, AfterValidator(_known)] = Field(
        "distilbert", description="a name from `bertender methods`"
    )
    layers: int = Field(3, ge=1, description="the student's layers")
    teacher_layers: Annotated[tuple[int, ...] | None, BeforeValidator(_numbers)] = Field(
        None, description="teacher layers to start from, as 1,3,5; alternating ones by default"
    )
    temperature: float | None = Field(
        None, gt=0, description="softness of the teacher's answers; the method's own by default"
    )
    weights: Annotated[dict[str, NonNegativeFloat], BeforeValidator(_named_numbers)] = Field(
        default_factory=dict, description="change loss weights, as soft=0.7,hard=0.3,cosine=0"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse what no teacher could make good before one is trained."""
        method_named(self.method).with_weights(self.weights, self.temperature)
        if self.teacher_layers and len(self.teacher_layers) != self.layers:
            raise ConfigError(
                f"teacher_layers={self.teacher_layers}: give {self.layers}, one for each of the "
                "student's layers, or leave it out to take alternating ones."
            )
        return self


class DistillationObjective:
    """A method's loss. The teacher runs only for what cannot be kept on disk.

    Args:
        method: its terms.
        teacher: it is frozen, in eval mode, and moved to where the batches are.
        bf16: run the teacher in bf16, as the student is.
    """

    def __init__(self, method: Method, teacher: PreTrainedModel, bf16: bool = False) -> None:
        self.bf16 = bf16
        self.terms = tuple(term for term in method.terms if term.weight)
        self.hidden_states = "hidden_states" in method.needs
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        student = read_signals(model, batch, self.hidden_states)
        teacher = self._teacher_signals(batch)
        return {term.name: term.weight * term(student, teacher, batch) for term in self.terms}

    def _teacher_signals(self, batch: TensorBatch) -> Signals:
        logits = batch.get("teacher_logits", torch.empty(0))
        if not self.hidden_states:
            return Signals(logits)
        device = batch["input_ids"].device
        self.teacher.to(device)
        # the Trainer's own autocast does not reach the teacher on a GPU
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            online = read_signals(self.teacher, batch, hidden_states=True)
        return Signals(logits, online.hidden_states)


def distill(teacher: Artifact, task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Train a student of `teacher` on a task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher; raised before training starts.
    """
    method = method_named(config.method).with_weights(config.weights, config.temperature)
    refuse_other_labels(teacher, task)
    teacher_model = load_torch_classifier(teacher)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teacher_model.to(device)  # type: ignore[arg-type]  # its decorator hides the signature
    teacher_tokenizer = load_tokenizer(teacher.path)
    torch.manual_seed(config.seed)  # the student's new head is random
    student = method.student(teacher_model, config.layers, config.teacher_layers)
    examples = _examples(method, teacher_model, teacher_tokenizer, teacher, task, config)
    tokenizer = fitting_tokenizer(str(teacher.path), student)
    identity = ("distill", config.model_dump(mode="json"), task.fingerprint(), teacher.digest)
    with work_directory(out, *identity) as work:
        report = train(
            student,
            examples,
            DistillationObjective(method, teacher_model, computes_in_bf16(config)),
            config,
            work,
            description=f"distill {out.name}",
            at_epoch_end=lambda trained: dev_score(trained, tokenizer, task, config.max_length),
        )
        on_main_process(
            lambda: write_classifier(
                out, "distill", student, tokenizer, task, config, teacher, report
            )
        )
    return Artifact.load(out)


def refuse_other_labels(teacher: Artifact, task: Task) -> None:
    """Refuse a teacher that does not answer this task's labels in this order.

    Raises:
        ModelError: the artifact is no torch classifier.
        ConfigError: it is one for other labels.
    """
    if teacher.card.kind != "torch" or not teacher.card.task.labels:
        raise ModelError(
            f"{teacher.path} (kind {teacher.card.kind}, stage {teacher.card.stage}) is no "
            "classifier to learn from. Give the artifact of `bertender finetune`."
        )
    if teacher.card.task.labels != task.labels:
        raise ConfigError(
            f"the teacher answers {teacher.card.task.labels} (task {teacher.card.task.name!r}) and "
            f"task {task.name!r} has {task.labels}. Fine-tune a teacher on this task first."
        )


def _examples(
    method: Method,
    teacher_model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    teacher: Artifact,
    task: Task,
    config: DistillConfig,
) -> TokenDataset:
    """Tokenise the task, with the teacher's logits where the method reads them."""
    examples = token_dataset(task.train, tokenizer, config.max_length)
    if "logits" not in method.needs:
        return examples
    logits = teacher_logits(teacher_model, teacher.digest, examples, computes_in_bf16(config))
    columns = {**examples.columns, "teacher_logits": logits.tolist()}
    return TokenDataset(columns, examples.pad_token_id)
