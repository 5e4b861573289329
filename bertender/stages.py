"""STAGES: every stage by name, and the one way in which all of them are called by name.

A stage function takes objects (an artifact, a task, its config). Here names become objects:
paths are loaded as artifacts, a task config as a task; nothing else is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertender.core.artifact import Artifact
from bertender.core.config import Config
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.core.predictor import refuse_taggers
from bertender.named_files import (
    encoder_files,
    general_files,
    needed_texts,
    student_files,
    teacher_files,
)
from bertender.step_kinds import (
    GRAPH_TO_QUANTIZE,
    PRETRAINED,
    TORCH_CLASSIFIER,
    TORCH_MODEL,
    Product,
    Source,
    StepKind,
    Want,
)
from bertender.tasks.registry import TASKS, load_task
from bertender.tasks.task import Task, TaskConfig
from distill.baseline import BagOfWordsConfig, train_bag_of_words
from distill.distiller import DistillConfig, distill
from distill.general import GeneralConfig, distill_general_by_name
from distill.multitask import (
    MultiTaskConfig,
    finetune_tasks_by_name,
    refuse_twice,
    sibling_paths,
)
from distill.pretraining.pretrain import PretrainConfig, pretrain_by_name
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune
from distill.sources import refuse_start
from export.onnx_export import ExportConfig, export, write_onnx
from quantize.quantizer import QuantizeConfig, quantize
from quantize.schemes import AUTO_SCHEME, scheme_named
from quantize.targets import target_named

__all__ = ["STAGES", "Stage", "recorded_task", "stage_named"]

AnyConfig = TypeVar("AnyConfig", bound=Config)


@dataclass(frozen=True, kw_only=True)
class Stage(StepKind):
    """A row of STAGES."""

    name: str
    source: str | None = None
    """What its source artifact is called; None for a command that takes none."""


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
    trains = config.scheme != AUTO_SCHEME and scheme_named(config.scheme).source == "torch"
    return TORCH_CLASSIFIER if trains else GRAPH_TO_QUANTIZE


def _check_target(config: QuantizeConfig, task: Task) -> None:
    target_named(config.target)


STAGES: Mapping[str, Stage] = {
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
}


def stage_named(name: str) -> Stage:
    """Return a row of STAGES, or raise UnknownNameError with the nearest name."""
    if name not in STAGES:
        raise UnknownNameError("stage", name, STAGES)
    return STAGES[name]


RENAMED = {"docs": "docs-library"}
"""Task -> the name that it has now, where another one has taken its name."""


def recorded_task(artifact: Artifact, changes: Mapping[str, Any]) -> Task:
    """Load the task that an artifact was made for, with some of its settings changed.

    What to choose on is set apart as it was then: of older artifacts nothing, since they have
    learned from every training text.

    Raises:
        ConfigError: the artifact records no task, and `changes` name none; or more is to be set
            apart than was then.
        ModelError: it labels words, for which no task is known by name.
    """
    refuse_taggers(artifact)
    names_task = "task" in changes or "train" in changes
    source = {} if names_task else _source(artifact)
    settings = {**source, **changes}
    if not (names_task or source):
        raise ConfigError(
            f"{artifact.path} does not say which task it is for. Name one with --task, or give "
            "your files with --train and --dev."
        )
    config = TaskConfig.parse(settings)
    if _is_own(artifact, config):
        config = TaskConfig.parse({**_set_apart(artifact), **settings})
        _refuse_learned(artifact, config)
    return load_task(config)


def _source(artifact: Artifact) -> dict[str, Any]:
    """Return how the artifact's task was loaded, by the name that the task has now."""
    record = artifact.card.task
    renamed = RENAMED.get(str(record.source.get("task")))
    if renamed and record.labels == TASKS[renamed].labels:
        return {**record.source, "task": renamed}
    return record.source


def _is_own(artifact: Artifact, config: TaskConfig) -> bool:
    """Return whether a task is of the data that the artifact was made from."""
    source = _source(artifact)
    if config.train is not None:  # whatever the task is called
        return str(config.train.absolute()) == source.get("train")
    return config.task == source.get("task")


def _set_apart(artifact: Artifact) -> dict[str, float]:
    """Return the share of the training texts that an artifact has not learned from, if known."""
    source = artifact.card.task.source
    return {"select": source.get("select", 0.0)} if source else {}


def _refuse_learned(artifact: Artifact, config: TaskConfig) -> None:
    """Raise ConfigError where texts would be chosen on that the artifact has learned from."""
    share = _set_apart(artifact).get("select", 0.0)
    if config.select is not None and config.select > share:
        raise ConfigError(
            f"select={config.select:g}: {artifact.path} was made with select={share:g}, and has "
            f"learned from the other texts. Give {share:g} at most, or make it again."
        )
