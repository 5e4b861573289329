"""Distilling: a student trained on what its teacher answers, by a row of METHODS.

teacher artifact + task + DistillConfig
  -> the method's student, and a trainee for each of its phases
  -> `phases.train_phases` -> student artifact
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeFloat, model_validator
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact, refuse_foreign_directory
from bertender.core.distributed import on_main_process
from bertender.core.errors import ConfigError, ModelError, UnknownNameError
from bertender.core.work import work_directory
from bertender.tasks.task import Task
from distill.data import fitting_tokenizer
from distill.layer_maps import LAYER_MAPS
from distill.methods import METHODS, Method, method_named
from distill.phases import PhasedConfig, train_phases
from distill.sources import find_start, load_teachers, student_examples, with_unlabelled
from distill.students import StudentShape
from distill.teacher import dev_score, write_classifier

__all__ = ["DistillConfig", "changed_method", "distill"]


def _parts(value: Any) -> Any:
    """Read "1,3,5" as its parts."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _named_numbers(value: Any) -> Any:
    """Read "soft=0.7,hard=0.3" as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",")]
    return {name.strip(): number for name, _, number in pairs}


def _known(name: str) -> str:
    return method_named(name).name


def _known_map(name: str | None) -> str | None:
    if name is not None and name not in LAYER_MAPS:
        raise UnknownNameError("layer map", name, LAYER_MAPS)
    return name


class DistillConfig(PhasedConfig):
    """How to make a student. What is not given has the method's own default."""

    shown_defaults: ClassVar[Mapping[str, str]] = dict.fromkeys(
        sorted({name for row in METHODS.values() for name in row.settings}), "the method's own"
    )

    method: Annotated[str, AfterValidator(_known)] = Field(
        "distilbert", description="a name from `bertender methods`"
    )
    student: str | None = Field(
        None,
        description="folder, packaged encoder or hub name that the student starts from, with its "
        "own vocabulary; the teacher by default",
    )
    more_teachers: Annotated[tuple[Path, ...], BeforeValidator(_parts)] = Field(
        (), description="more artifacts by commas, whose answers are averaged with the teacher's"
    )
    unlabelled: Path | None = Field(
        None, description="more texts to learn from: .txt, CSV, TSV, JSONL or Parquet"
    )
    layers: int | None = Field(
        None, ge=1, description="the student's layers; half of its start's by default"
    )
    hidden_size: int | None = Field(None, ge=8, description="its width; the teacher's by default")
    heads: int | None = Field(None, ge=1, description="its heads; the teacher's by default")
    feed_forward_size: int | None = Field(
        None, ge=1, description="width of its feed-forward part; 4 x hidden_size by default"
    )
    teacher_layers: Annotated[tuple[int, ...] | None, BeforeValidator(_parts)] = Field(
        None, description="teacher layers to start from, as 1,3,5; the method's choice by default"
    )
    temperature: float | None = Field(
        None, gt=0, description="softness of the teacher's answers; the method's own by default"
    )
    weights: Annotated[dict[str, NonNegativeFloat], BeforeValidator(_named_numbers)] = Field(
        default_factory=dict, description="change loss weights, as soft=0.7,hard=0.3,cosine=0"
    )
    layer_map: Annotated[str | None, AfterValidator(_known_map)] = Field(
        None, description=f"which layers are matched: {', '.join(LAYER_MAPS)}"
    )
    relation_heads: int | None = Field(
        None, ge=1, description="heads that relations are cut into; the method's own by default"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_the_methods_defaults(cls, values: Any) -> Any:
        name = values.get("method", cls.model_fields["method"].default)
        method = METHODS.get(name) if isinstance(name, str) else None
        return {**method.settings, **values} if method else values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse what no teacher could make good before one is trained."""
        method = changed_method(self)
        for name in ("earlier_epochs", "earlier_learning_rate"):
            if getattr(self, name) is not None and not method.has_phases:
                raise ConfigError(
                    f"{name}={getattr(self, name)}: method {self.method!r} has one phase only, "
                    f"for {name.removeprefix('earlier_')}. Leave it out."
                )
        given = len(self.teacher_layers or ())
        if method.layer_by_layer and given and self.layers and given != self.layers:
            raise ConfigError(
                f"teacher_layers={self.teacher_layers}: give {self.layers}, one for each of the "
                "student's layers, or leave it out for the method's choice."
            )
        return self

    def shape(self, method: Method, start_layers: int) -> StudentShape:
        """Return the student that is asked for, from a start of so many layers."""
        chosen = len(self.teacher_layers or ()) if method.layer_by_layer else 0
        return StudentShape(
            layers=self.layers or chosen or method.layers(start_layers),
            hidden_size=self.hidden_size,
            heads=self.heads,
            feed_forward_size=self.feed_forward_size,
            teacher_layers=self.teacher_layers,
        )


def changed_method(config: DistillConfig) -> Method:
    """Return the method with the config's weights and settings of terms.

    Raises:
        UnknownNameError, ConfigError: there is nothing of that name to change.
    """
    return method_named(config.method).changed(
        config.weights,
        temperature=config.temperature,
        layers=LAYER_MAPS[config.layer_map] if config.layer_map else None,
        relation_heads=config.relation_heads,
    )


def distill(teacher: Artifact, task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Train a student of `teacher` on a task and write it as a torch artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher; raised before training starts.
        DataError: the file of unlabelled texts is wrong.
    """
    refuse_foreign_directory(out)  # said before the teacher answers every text
    method = changed_method(config)
    texts = with_unlabelled(task, method, config.unlabelled)
    teachers = load_teachers(teacher, config.more_teachers, method, task)
    torch.manual_seed(config.seed)  # what the student does not take from elsewhere is random
    start = find_start(teachers[0], method, config.student)
    shape = config.shape(method, start.model.config.num_hidden_layers)
    student = method.student(start.model, shape)
    _refuse_misfits(method, student, teachers[0].model)
    digests = [start.digest, *(each.artifact.digest for each in teachers)]
    identity = ("distill", config.model_dump(mode="json"), texts.fingerprint(), digests)
    with work_directory(out, *identity) as work:
        examples = student_examples(method, teachers, start, texts, config)
        tokenizer = fitting_tokenizer(start.source, student)
        student, reports = train_phases(
            method,
            student,
            teachers[0].model,
            examples,
            config,
            work,
            description=f"distill {out.name}",
            score=lambda trained: dev_score(trained, tokenizer, task, config.max_length),
        )
        *earlier, last = reports.values()
        losses = {name: report.losses for name, report in zip(reports, earlier, strict=False)}
        write = partial(write_classifier, out, "distill", student, tokenizer, task, config, teacher)
        on_main_process(lambda: write(last, earlier_losses=losses))
    return Artifact.load(out)


def _refuse_misfits(method: Method, student: PreTrainedModel, teacher: PreTrainedModel) -> None:
    """Raise ModelError where a term cannot compare this student with this teacher."""
    misfits = [
        term.misfit(student.config, teacher.config)
        for phase in method.phases(student.config.num_hidden_layers)
        for term in phase.terms
        if term.weight
    ]
    if found := sorted({misfit for misfit in misfits if misfit}):
        raise ModelError(f"method {method.name!r}: {'; '.join(found)}.")
