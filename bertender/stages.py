"""STAGES: every stage by name, and the one way in which all of them are called by name.

A stage function takes objects (an artifact, a task, its config). Here names become objects:
paths are loaded as artifacts, a task config as a task; nothing else is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertender.core.artifact import Artifact, sha256_of
from bertender.core.config import Config
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.core.predictor import refuse_taggers
from bertender.core.timing import TIMING_NAME
from bertender.tasks.registry import load_task
from bertender.tasks.task import Task, TaskConfig
from distill.baseline import BagOfWordsConfig, train_bag_of_words
from distill.corpora.corpus import Corpus, survey
from distill.distiller import DistillConfig, distill
from distill.general import GeneralConfig, distill_general_by_name
from distill.multitask import (
    MultiTaskConfig,
    finetune_tasks_by_name,
    sibling_paths,
)
from distill.pretraining.pretrain import PretrainConfig, pretrain_by_name
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.pruning.pruner import prune
from export.onnx_export import ExportConfig, export, write_onnx
from quantize.quantizer import QuantizeConfig, quantize

__all__ = ["STAGES", "Stage", "recorded_task", "stage_named"]


@dataclass(frozen=True)
class Stage:
    """A row of STAGES."""

    name: str
    config: type[Config]
    run: Callable[[Sequence[Artifact], Task | None, Any, Path], Artifact]
    """(source artifacts, task, config, out) -> the artifact that it wrote"""
    source: str | None = None
    """What its source artifact is called; None for a command that takes none."""
    sources: Sequence[int] = (1,)
    """How many artifacts of earlier steps it can start from in a recipe."""
    takes_task: bool = True
    files: Callable[[Any], str] = lambda config: ""
    """config -> a digest of the files that it names"""
    siblings: Callable[[Any, Path], Sequence[Path]] = lambda config, out: ()
    """(config, out) -> the artifacts that it writes beside `out`"""


def _from_source(function: Callable[..., Artifact]) -> Callable[..., Artifact]:
    def run(sources: Sequence[Artifact], task: Task | None, config: Config, out: Path) -> Artifact:
        return function(sources[0], task, config, out)

    return run


def _without_source(function: Callable[..., Artifact]) -> Callable[..., Artifact]:
    def run(sources: Sequence[Artifact], task: Task | None, config: Config, out: Path) -> Artifact:
        return function(task, config, out)

    return run


def _finetune(
    sources: Sequence[Artifact], task: Task | None, config: MultiTaskConfig, out: Path
) -> Artifact:
    """Fine-tune what the config names, or, in a recipe, the artifact of an earlier step."""
    assert task is not None
    return finetune_tasks_by_name(task, _with_teacher(sources, config), out)


def _distill(
    sources: Sequence[Artifact], task: Task | None, config: DistillConfig, out: Path
) -> Artifact:
    """Distil the first source; in a recipe, a second one is what the student starts from."""
    assert task is not None
    teacher, *starts = sources
    if starts:
        if config.student is not None:
            raise ConfigError(
                f"student={config.student!r} and the earlier step {starts[0].name!r} are both for "
                "the student to start from. Drop one of them."
            )
        config = config.model_copy(update={"student": str(starts[0].path)})
    return distill(teacher, task, config, out)


def _pretrain(
    sources: Sequence[Artifact], task: Task | None, config: PretrainConfig, out: Path
) -> Artifact:
    """Pre-train an encoder; in a recipe, one that grows from the artifact of an earlier step."""
    if sources:
        if config.stack_from is not None:
            raise ConfigError(
                f"stack_from={str(config.stack_from)!r} and the earlier step {sources[0].name!r} "
                "are both to grow from. Drop one of them."
            )
        config = config.model_copy(update={"stack_from": sources[0].path})
    return pretrain_by_name(config, out)


def _distill_general(
    sources: Sequence[Artifact], task: Task | None, config: GeneralConfig, out: Path
) -> Artifact:
    """Distil what the config names, or, in a recipe, the artifact of an earlier step."""
    return distill_general_by_name(_with_teacher(sources, config), out)


def _quantize(
    sources: Sequence[Artifact], task: Task | None, config: QuantizeConfig, out: Path
) -> Artifact:
    """Quantize the source; schemes that train are handed the way to a graph."""
    assert task is not None

    def write(trained: Artifact, directory: Path) -> None:
        write_onnx(trained, task, ExportConfig(), directory)

    return quantize(sources[0], task, config, out, write_onnx=write)


TaughtConfig = TypeVar("TaughtConfig", MultiTaskConfig, GeneralConfig)


def _with_teacher(sources: Sequence[Artifact], config: TaughtConfig) -> TaughtConfig:
    """Return the config with an earlier step's artifact as the encoder that it names."""
    if not sources:
        return config
    if "teacher" in config.model_fields_set:
        raise ConfigError(
            f"teacher={config.teacher!r} and the earlier step {sources[0].name!r} are both to "
            "start from. Drop one of them."
        )
    return config.model_copy(update={"teacher": str(sources[0].path)})


def _teacher_files(config: MultiTaskConfig) -> str:
    tasks = (load_task(TaskConfig(task=name)).fingerprint() for name in config.more_tasks)
    return " ".join((_folder_digest(config.teacher), *tasks))


def _general_files(config: GeneralConfig) -> str:
    return f"{_folder_digest(config.teacher)} {_corpus_text(config)}"


def _student_files(config: DistillConfig) -> str:
    folders = (config.student, config.augmentation_model, *map(str, config.more_teachers))
    texts = config.unlabelled
    digest = sha256_of(texts) if texts and texts.is_file() else ""
    return " ".join((*map(_folder_digest, folders), digest))


def _folder_digest(folder: str | None) -> str:
    """Return a digest of a folder that a setting names; empty for other names.

    How long it took to make an artifact is no part of it.
    """
    digest = hashlib.sha256()
    found = Path(folder).rglob("*") if folder else ()
    files = sorted(path for path in found if path.is_file() and path.name != TIMING_NAME)
    for path in files:
        digest.update(f"{path.name} {sha256_of(path)}".encode())
    return digest.hexdigest() if files else ""


def _encoder_files(config: PretrainConfig) -> str:
    return f"{_folder_digest(str(config.stack_from or ''))} {_corpus_text(config)}"


def _corpus_text(config: PretrainConfig | GeneralConfig) -> str:
    """Return a digest of the corpus that `config.corpus` names."""
    return survey(Corpus(config.corpus, config.text_column)).sha256


def _needed_texts(config: PruneConfig) -> str:
    """Return a digest of the corpus that the vocabulary is pruned for, where it is one."""
    return survey(Corpus(config.vocab)).sha256 if config.vocab not in (None, OF_THE_TASK) else ""


STAGES: Mapping[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("baseline", BagOfWordsConfig, _without_source(train_bag_of_words), sources=(0,)),
        Stage(
            "pretrain",
            PretrainConfig,
            _pretrain,
            sources=(0, 1),
            takes_task=False,
            files=_encoder_files,
        ),
        Stage(
            "distill-general",
            GeneralConfig,
            _distill_general,
            sources=(0, 1),
            takes_task=False,
            files=_general_files,
        ),
        Stage(
            "finetune",
            MultiTaskConfig,
            _finetune,
            sources=(0, 1),
            files=_teacher_files,
            siblings=sibling_paths,
        ),
        Stage(
            "distill",
            DistillConfig,
            _distill,
            source="teacher",
            sources=(1, 2),
            files=_student_files,
        ),
        Stage("prune", PruneConfig, _from_source(prune), source="artifact", files=_needed_texts),
        Stage("export", ExportConfig, _from_source(export), source="artifact"),
        Stage("quantize", QuantizeConfig, _quantize, source="artifact"),
    )
}


def stage_named(name: str) -> Stage:
    """Return a row of STAGES, or raise UnknownNameError with the nearest name."""
    if name not in STAGES:
        raise UnknownNameError("stage", name, STAGES)
    return STAGES[name]


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
    source = {} if names_task else artifact.card.task.source
    settings = {**source, **_set_apart(artifact), **changes}
    if not (names_task or source):
        raise ConfigError(
            f"{artifact.path} does not say which task it is for. Name one with --task, or give "
            "your files with --train and --dev."
        )
    config = TaskConfig.parse(settings)
    _refuse_learned(artifact, config)
    return load_task(config)


def _set_apart(artifact: Artifact) -> dict[str, float]:
    """Return the share of the training texts that an artifact has not learned from, if known."""
    source = artifact.card.task.source
    return {"select": source.get("select", 0.0)} if source else {}


def _refuse_learned(artifact: Artifact, config: TaskConfig) -> None:
    """Raise ConfigError where texts would be chosen on that the artifact has learned from."""
    source = artifact.card.task.source
    train = str(config.train.absolute()) if config.train else None
    same = (config.task, train) == (source.get("task"), source.get("train"))
    share = _set_apart(artifact).get("select", 0.0)
    if same and config.select is not None and config.select > share:
        raise ConfigError(
            f"select={config.select:g}: {artifact.path} was made with select={share:g}, and has "
            f"learned from the other texts. Give {share:g} at most, or make it again."
        )
