"""STAGES: every stage by name, and the one way in which all of them are called by name.

A stage function takes objects (an artifact, a task, its config). Here names become objects:
paths are loaded as artifacts, a task config as a task; nothing else is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bertender.core.artifact import Artifact
from bertender.core.config import Config
from bertender.core.table import Table
from bertender.pipeline.named_files import (
    encoder_files,
    general_files,
    needed_texts,
    student_files,
    teacher_files,
)
from bertender.pipeline.step_kinds import (
    GRAPH_TO_QUANTIZE,
    PRETRAINED,
    TORCH_CLASSIFIER,
    TORCH_MODEL,
    Product,
    Source,
    StepKind,
    Want,
)
from bertender.tasks.task import Task
from distill.distillation.distiller import DistillConfig, distill
from distill.distillation.general import GeneralConfig, distill_general_by_name
from distill.distillation.start import refuse_start
from distill.finetuning.baseline import BagOfWordsConfig, train_bag_of_words
from distill.finetuning.multitask import (
    MultiTaskConfig,
    finetune_tasks_by_name,
    refuse_twice,
    sibling_paths,
)
from distill.pretraining.pretrain import PretrainConfig, pretrain_by_name
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from export.onnx_export import ExportConfig, export, write_onnx
from quantize.quantizer import QuantizeConfig, quantize
from quantize.schemes import AUTO_SCHEME, SCHEMES
from quantize.targets import target_named

__all__ = ["STAGES", "Stage"]

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Stage(StepKind):
    """A row of STAGES."""

    name: str
    source: str | None = None
    """The name of its source argument; None for a command without a source."""


def _from_source(function: Callable[..., Artifact]) -> Callable[..., Artifact]:
    def run(sources: Sequence[Artifact], task: Task | None, config: Config, out: Path) -> Artifact:
        return function(sources[0], task, config, out)

    return run


def _without_source(function: Callable[..., Artifact]) -> Callable[..., Artifact]:
    def run(sources: Sequence[Artifact], task: Task | None, config: Config, out: Path) -> Artifact:
        return function(task, config, out)

    return run


def _filled(stage: str, config: AnyConfig, sources: Sequence[Artifact]) -> AnyConfig:
    """Return the config with the artifacts of earlier steps that stand for a setting."""
    return STAGES[stage].filled(config, [Source(each.name, each.path) for each in sources])


def _finetune(
    sources: Sequence[Artifact], task: Task | None, config: MultiTaskConfig, out: Path
) -> Artifact:
    """Fine-tune what the config names, or, in a recipe, the artifact of an earlier step."""
    assert task is not None
    return finetune_tasks_by_name(task, _filled("finetune", config, sources), out)


def _distill(
    sources: Sequence[Artifact], task: Task | None, config: DistillConfig, out: Path
) -> Artifact:
    """Distil the first source; in a recipe, a second one is what the student starts from."""
    assert task is not None
    return distill(sources[0], task, _filled("distill", config, sources), out)


def _pretrain(
    sources: Sequence[Artifact], task: Task | None, config: PretrainConfig, out: Path
) -> Artifact:
    """Pre-train an encoder; in a recipe, one that grows from the artifact of an earlier step."""
    return pretrain_by_name(_filled("pretrain", config, sources), out)


def _distill_general(
    sources: Sequence[Artifact], task: Task | None, config: GeneralConfig, out: Path
) -> Artifact:
    """Distil what the config names, or, in a recipe, the artifact of an earlier step."""
    return distill_general_by_name(_filled("distill-general", config, sources), out)


def _quantize(
    sources: Sequence[Artifact], task: Task | None, config: QuantizeConfig, out: Path
) -> Artifact:
    """Quantize the source; schemes that train are handed the way to a graph."""
    assert task is not None

    def write(trained: Artifact, directory: Path) -> None:
        write_onnx(trained, task, ExportConfig(), directory)

    return quantize(sources[0], task, config, out, write_onnx=write)


def _classifier_of(stage: str) -> Callable[[Config], Product]:
    return lambda config: Product(stage, "torch")


def _encoder_of(stage: str) -> Callable[[Config], Product]:
    return lambda config: Product(stage, "torch", classifies=False)


def _teacher_and_start(config: DistillConfig, position: int) -> Want:
    return (TORCH_CLASSIFIER, TORCH_MODEL)[position]


def _to_quantize(config: QuantizeConfig, position: int) -> Want:
    """Return what a scheme starts from."""
    trains = config.scheme != AUTO_SCHEME and SCHEMES[config.scheme].source == "torch"
    return TORCH_CLASSIFIER if trains else GRAPH_TO_QUANTIZE


def _check_target(config: QuantizeConfig, task: Task) -> None:
    target_named(config.target)


STAGES = Table(
    "stage",
    {
        stage.name: stage
        for stage in (
            Stage(
                name="baseline",
                config=BagOfWordsConfig,
                run=_without_source(train_bag_of_words),
                modules=(train_bag_of_words.__module__,),
                sources=(0,),
                makes=lambda config: Product("baseline", "bag-of-words"),
            ),
            Stage(
                name="pretrain",
                config=PretrainConfig,
                run=_pretrain,
                modules=(pretrain_by_name.__module__,),
                sources=(0, 1),
                wants=lambda config, position: PRETRAINED,
                makes=_encoder_of("pretrain"),
                fills={0: "stack_from"},
                named=encoder_files,
                takes_task=False,
            ),
            Stage(
                name="distill-general",
                config=GeneralConfig,
                run=_distill_general,
                modules=(distill_general_by_name.__module__,),
                sources=(0, 1),
                wants=lambda config, position: TORCH_MODEL,
                makes=_encoder_of("distill-general"),
                fills={0: "teacher"},
                named=general_files,
                takes_task=False,
            ),
            Stage(
                name="finetune",
                config=MultiTaskConfig,
                run=_finetune,
                modules=(finetune_tasks_by_name.__module__,),
                sources=(0, 1),
                wants=lambda config, position: TORCH_MODEL,
                makes=_classifier_of("finetune"),
                fills={0: "teacher"},
                named=teacher_files,
                check=lambda config, task: refuse_twice((task.name, *config.more_tasks)),
                siblings=sibling_paths,
            ),
            Stage(
                name="distill",
                config=DistillConfig,
                run=_distill,
                modules=(distill.__module__,),
                source="teacher",
                sources=(1, 2),
                wants=_teacher_and_start,
                makes=_classifier_of("distill"),
                fills={1: "student"},
                named=student_files,
                check=lambda config, task: refuse_start(config.changed_method(), config.student),
            ),
            Stage(
                name="prune",
                config=PruneConfig,
                run=_from_source(prune),
                modules=(prune.__module__,),
                source="artifact",
                wants=lambda config, position: TORCH_CLASSIFIER,
                makes=_classifier_of("prune"),
                named=needed_texts,
            ),
            Stage(
                name="export",
                config=ExportConfig,
                run=_from_source(export),
                modules=(export.__module__,),
                source="artifact",
                wants=lambda config, position: TORCH_CLASSIFIER,
                makes=lambda config: Product(
                    "export", "onnx", precision=config.precision, fused=config.optimize == "fused"
                ),
            ),
            Stage(
                name="quantize",
                config=QuantizeConfig,
                run=_quantize,
                # schemes that train are handed export's writer
                modules=(quantize.__module__, write_onnx.__module__),
                source="artifact",
                wants=_to_quantize,
                makes=lambda config: Product("quantize", "onnx", precision="int8"),
                check=_check_target,
            ),
        )
    },
)
