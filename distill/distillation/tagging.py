"""Taggers: a small student distilled from an encoder that was fine-tuned on the tags of words.

It runs on the path of text classifiers, `Distillation.run`. Only the examples differ, which have
a label, and a teacher's logits, for each token.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import Field
from transformers import (
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.core.artifact import Artifact, refuse_foreign_directory
from bertender.core.errors import ConfigError, ModelError
from bertender.core.findings import Findings
from bertender.models.own_models import OWN_MODELS
from bertender.models.predictor import load_torch_tagger
from bertender.tasks.tagging import TaggingTask
from bertender.text.batch import load_tokenizer, longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TokenDataset
from bertender.training.findings import training_findings
from bertender.training.trained import Writer, trained_artifact
from distill.data import fitting_tokenizer, tagged_dataset
from distill.distillation.config import StudentConfig
from distill.distillation.distillation import Distillation
from distill.distillation.start import Start, start_student
from distill.methods.method import Method
from distill.scoring import tagging_score
from distill.teachers.outputs import LOGITS, teacher_token_logits, worth_keeping
from distill.teachers.teacher import Teacher, on_device
from distill.writing import write_classifier

__all__ = [
    "DistillTaggerConfig",
    "distill_tagger",
    "with_token_head",
]


class DistillTaggerConfig(StudentConfig):
    """Settings of `distill_tagger`."""

    method: str = Field("minibert", description="a name from `bertender methods`")
    student: str | None = Field(
        None,
        description="folder, packaged encoder or hub name that the student starts from, of the "
        "teacher's vocabulary; the teacher by default",
    )


def distill_tagger(
    teacher: Artifact, task: TaggingTask, config: DistillTaggerConfig, out: Path
) -> Artifact:
    """Train a student of a tagger on a tagging task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher; raised before training starts.
    """
    config.check_rules()
    refuse_foreign_directory(out)
    method = config.changed_method()
    source = _load_teacher(teacher, task)
    start, student = start_student(source, method, config, config.student, head=with_token_head)
    _refuse_other_tokens(method, start, teacher)
    tokenizer = fitting_tokenizer(start.source, student, add_prefix_space=True)
    distillation = Distillation(
        student=student,
        teacher=source.model,
        tokenizer=tokenizer,
        phases=method.phases(student.config.num_hidden_layers),
        examples=partial(_student_examples, method, student, source, task, tokenizer, config),
        evaluate=lambda training_module, objective: tagging_score(
            training_module.student, tokenizer, task, config.max_length
        ),
        training_module=method.training_module,
    )

    def train(work: Path) -> Writer:
        trained = distillation.run(config, work, f"distill {out.name}")
        return partial(
            write_classifier,
            model=trained.student,
            tokenizer=tokenizer,
            task=task,
            findings=Findings(training=training_findings(trained.reports)),
        )

    identity = (task.fingerprint(), start.digest, teacher.digest)
    return trained_artifact(out, "distill", config, train, identity=identity, parent=teacher)


def with_token_head(student: PreTrainedModel) -> PreTrainedModel:
    """Return a tagger with the student's encoder; its head is new where it is not one already.

    Raises:
        ModelError: the student is of a class of bertender's own, which labels texts alone.
    """
    if student.config.model_type in OWN_MODELS:
        raise ModelError(
            f"a {student.config.model_type!r} student labels texts and cannot tag words. Choose a "
            "method whose students are of a class of transformers, such as minibert."
        )
    tagger: PreTrainedModel = AutoModelForTokenClassification.from_config(student.config)
    if isinstance(student, type(tagger)):
        return student
    own = tagger.base_model.state_dict()
    encoder = student.base_model.state_dict()  # with a pooler, which taggers do not have
    tagger.base_model.load_state_dict({name: encoder[name] for name in own})
    return tagger


def _load_teacher(artifact: Artifact, task: TaggingTask) -> Teacher:
    model = load_torch_tagger(artifact)
    if artifact.card.task.labels != task.labels:
        raise ConfigError(
            f"the teacher (task {artifact.card.task.name!r}) answers other tags than task "
            f"{task.name!r} has. Fine-tune a teacher on this task first."
        )
    return Teacher(artifact, on_device(model))


def _refuse_other_tokens(method: Method, start: Start, teacher: Artifact) -> None:
    """Raise ModelError where teacher and student would answer for different pieces of words."""
    own, theirs = load_tokenizer(start.source), load_tokenizer(teacher.path)
    if method.needs and own.get_vocab() != theirs.get_vocab():
        raise ModelError(
            f"student={start.source!r}: a tagger is taught word piece by word piece, so that "
            "teacher and student must read the same ones, and these do not. Leave it out, or give "
            "an encoder with the teacher's vocabulary."
        )


def _student_examples(
    method: Method,
    student: PreTrainedModel,
    teacher: Teacher,
    task: TaggingTask,
    tokenizer: PreTrainedTokenizerBase,
    config: StudentConfig,
) -> TokenDataset:
    """Tokenise the sentences, with the teacher's logits where a phase reads nothing else of it."""
    longest = longest_input(load_tokenizer(teacher.artifact.path))
    examples = tagged_dataset(task.train, tokenizer, min(config.max_length, longest))
    depths = student.config.num_hidden_layers, teacher.model.config.num_hidden_layers
    if "logits" not in worth_keeping(phase.reads(*depths) for phase in method.phases(depths[0])):
        return examples
    answers = teacher_token_logits(
        teacher.model, teacher.artifact.digest, examples, computes_in_bf16(config)
    )
    return TokenDataset(
        {**examples.columns, LOGITS: answers},
        examples.padding.beside(**{LOGITS: 0}),
    )
