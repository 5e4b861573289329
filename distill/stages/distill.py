"""DISTILL: a student of a teacher, on a task.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.artifact import Artifact
from bertender.core.table import on_demand
from bertender.pipeline.named_files import ArtifactFolder, NamedFile, TextFile
from bertender.pipeline.products import TORCH_CLASSIFIER, TORCH_MODEL, Earlier, Product, Want
from bertender.pipeline.stage import Inputs, Stage
from bertender.tasks.task import Task
from distill.distillation.distill_config import DistillConfig
from distill.methods import METHODS
from distill.stages.encoder_folder import Encoder, expected_encoder

if TYPE_CHECKING:
    from bertender.models.expected import ExpectedModel

__all__ = ["DISTILL"]


def _distill(inputs: Inputs, config: DistillConfig, out: Path) -> Artifact:
    from distill.distillation.distiller import distill

    return distill(inputs.sources[0], inputs.task, config, out)


def _teacher_and_start(config: DistillConfig, position: int) -> Want:
    return (TORCH_CLASSIFIER, TORCH_MODEL)[position]


def _files(config: DistillConfig) -> Iterator[NamedFile]:
    for setting in ("student", "augmentation_model"):
        if (name := getattr(config, setting)) is not None:
            yield Encoder(setting, name)
    yield from map(ArtifactFolder, config.more_teachers)
    if config.unlabelled is not None:
        yield TextFile("unlabelled", config.unlabelled)


def _check(config: DistillConfig, task: Task) -> None:
    from distill.distillation.on_task import check_can_tag, check_texts_read
    from distill.distillation.start import check_start

    check_start(config.changed_method(), config.student)
    check_texts_read(task, config)
    check_can_tag(config.changed_method(), task)


def _without_layers() -> list[str]:
    """Return the methods whose students have no layers to choose."""
    return [name for name, row in METHODS.items() if "layers" in row.student.lacks]


def _model(config: DistillConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.distillation.expected import expected_student
    from distill.distillation.start import check_start

    check_start(config.changed_method(), config.student)
    start = None if config.student is None else expected_encoder(config.student, earlier)
    return expected_student(config, earlier.sources[0], start)


DISTILL = Stage(
    name="distill",
    config=DistillConfig,
    function=_distill,
    source="teacher",
    sources=(1, 2),
    wants=_teacher_and_start,
    makes=lambda config: Product("distill", "torch"),
    model=_model,
    fills={1: "student"},
    files=_files,
    texts=on_demand("distill.distillation.unlabelled:texts_of_task"),
    check=_check,
    provides={
        "depth": on_demand("distill.teachers.encoders:depth_of"),
        "without_layers": _without_layers,
    },
)
