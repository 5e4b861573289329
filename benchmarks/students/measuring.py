"""Scores students of one teacher, of several settings and seeds, on the same texts.

    python -m benchmarks.students TEACHER STUDENT [STUDENT ...] --out FILE.json

A student is any artifact that comes from the teacher: distilled, pruned, exported or quantized.
Those whose folders differ by a number at the end (`student-0`, `student-1`) are made by one command
with several seeds, or from such, and are one row of the table. Each is scored on the texts to
choose by, which nothing learns from, and on the held-out ones, which choose nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from pydantic import Field

from benchmarks.common.options import OutFile
from benchmarks.common.points import gained
from bertender.comparison.accuracy import evaluate
from bertender.comparison.records import Size, measure_size
from bertender.core.artifact import Artifact, Timing, lineage, read_timing
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.core.files import save_result
from bertender.core.findings import ChosenOn
from bertender.core.machine import Environment, environment, processor_name
from bertender.core.progress import show_progress, track
from bertender.metrics.resampling import Change, LabelSet, Score
from bertender.models.opening import open_classifier
from bertender.models.predictor import problem_of
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.training.config import TrainingConfig
from quantize.schemes import SCHEMES, SHARED

__all__ = [
    "ScoredModel",
    "StudentsBenchmark",
    "check_scorable",
    "groups_of",
    "made_by",
    "scored_students",
    "without_folders",
]


NUMBER = re.compile(r"-\d+$")
NOT_COMPARED = frozenset({"seed", "checkpoint_steps"})
"""Settings that models of one row may differ in."""


class WithName(Protocol):
    """An artifact, or its record."""

    @property
    def name(self) -> str: ...


Model = TypeVar("Model", bound=WithName)


def groups_of(models: Iterable[Model]) -> dict[str, list[Model]]:
    """Return models by their names without the number at the end, in order."""
    groups: dict[str, list[Model]] = {}
    for model in models:
        groups.setdefault(NUMBER.sub("", model.name), []).append(model)
    return groups


def made_by(stage: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return how a model was made: its stage, and the settings that a row of the table shares.

    Those of a training are left out where pruning had none, and those that a scheme does not read.
    """
    unread = NOT_COMPARED
    if settings.get("recover") is False:
        unread |= TrainingConfig.model_fields.keys()
    if settings.get("scheme") in SCHEMES:
        reads = SCHEMES[settings["scheme"]].reads
        unread |= settings.keys() - SHARED - reads
        if "sensitive_bits" in reads and settings["sensitive_bits"] is None:
            unread |= {"sensitivity", "sensitivity_texts", "sensitive_bits", "sensitive_share"}
        if "table_bits" in reads and settings.get("table_bits", 8) == 8:
            unread |= {"block_size", "table_bits"}
    return stage, {name: each for name, each in settings.items() if name not in unread}


class ScoredModel(Record):
    """An artifact and what it scores."""

    name: str
    digest: str
    parent: str | None = Field(description="digest of what it was made from")
    stage: str
    seed: int
    settings: dict[str, Any] = Field(description="of its stage, as its card has them")
    timing: Timing | None = Field(description="of its stage, where that records one")
    size: Size
    choice: Score = Field(description="on the texts to choose by")
    score: Score
    predictions: tuple[int, ...] = Field(description="label numbers of the held-out texts")


class StudentsBenchmark(Record):
    """Students of one teacher on one task."""

    task: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    label_names: tuple[str, ...]
    chosen_on: ChosenOn
    environment: Environment
    teacher: ScoredModel
    students: tuple[ScoredModel, ...]

    @property
    def label_set(self) -> LabelSet:
        """All labels of the task."""
        return LabelSet(count=len(self.label_names), names=self.label_names)

    def gained(self, references: Sequence[ScoredModel], models: Sequence[ScoredModel]) -> Change:
        """Return what models gain over others on average; the interval holds texts and seeds."""
        return gained(self.metric, self.labels, references, models, label_set=self.label_set)


def _scored(artifact: Artifact, task: Task) -> ScoredModel:
    classifier = open_classifier(artifact)
    choice, _ = evaluate(classifier, task.choices, task.metric)
    score, predictions = evaluate(classifier, task.dev, task.metric)
    card = artifact.card
    return ScoredModel(
        name=artifact.name,
        digest=artifact.digest,
        parent=card.parent.digest if card.parent else None,
        stage=card.stage,
        seed=card.seed,
        settings={name: without_folders(value) for name, value in card.config.items()},
        timing=read_timing(artifact),
        size=measure_size(artifact, classifier.parameters),
        choice=choice,
        score=score,
        predictions=tuple(predictions.tolist()),
    )


def _cached_score(artifact: Artifact, task: Task, place: Path) -> ScoredModel:
    """Return what an artifact scores, from `place` where an earlier run wrote it for this one."""

    def score() -> None:
        save_result(_scored(artifact, task), place)

    place.parent.mkdir(parents=True, exist_ok=True)
    # what multiplies in 8 bits can differ by the processor
    where = (processor_name(environment()), library_versions(), [*ScoredModel.model_fields])
    build_once([place], (artifact.digest, task.fingerprint(), *where), score)
    return ScoredModel.model_validate_json(place.read_text(encoding="utf-8"))


def without_folders(value: Any) -> Any:
    """Return a setting without the folders of this machine."""
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if isinstance(value, str):
        return ",".join(Path(part).name if _is_place(part) else part for part in value.split(","))
    return value


def _is_place(text: str) -> bool:
    return text.startswith(("/", ".", "~"))


def check_scorable(teacher: Artifact, task: Task) -> None:
    """Raise ConfigError where the teacher has other labels, or no texts to choose by."""
    if problem_of(teacher) is not SINGLE_LABEL:
        raise ConfigError(f"{teacher.path}: only models with one label a text can be scored here.")
    if task.chosen_on != "selection":
        raise ConfigError(
            f"{teacher.path} has no texts to choose by, so that every score would be of texts that "
            "may have chosen it. Fine-tune it with --select 0.1."
        )


def _check(teacher: Artifact, students: Sequence[Artifact]) -> None:
    """Raise ConfigError where the artifacts cannot be rows of one table."""
    for each in students:
        if teacher.digest not in {source.digest for source in _sources(each)}:
            raise ConfigError(
                f"{each.path} does not come from {teacher.path}, or what it was made from is gone. "
                "Give artifacts of this teacher, where they were made."
            )
    names = [each.name for each in (teacher, *students)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two artifacts are called {twice[0]!r}: give each folder its own name.")
    for group in groups_of(students).values():
        _check_group(group)


def _check_group(group: Sequence[Artifact]) -> None:
    """Raise ConfigError where names say that only seeds differ, and more does."""
    first, *others = group
    for each in others:
        if _steps_of(each) != _steps_of(first):
            raise ConfigError(
                f"{first.path} and {each.path} differ by a number, which is for seeds, and were "
                "made with other settings. Give their folders other names."
            )


def _steps_of(artifact: Artifact) -> list[tuple[str, dict[str, Any]]]:
    """Return how an artifact and all that it was made from were made."""
    return [made_by(each.card.stage, each.card.config) for each in _sources(artifact)]


def _sources(artifact: Artifact) -> list[Artifact]:
    """Return an artifact and what it was made from, as far as that is there."""
    return [each for each in lineage(artifact) if isinstance(each, Artifact)]


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    students: Annotated[list[Path], typer.Argument(help="artifacts that come from it")],
    out: OutFile,
) -> None:
    """Score the teacher and each student, and write what they score."""
    show_progress()
    source, artifacts = Artifact.load(teacher), [Artifact.load(path) for path in students]
    save_result(scored_students(source, recorded_task(source, {}), artifacts), out)


def scored_students(
    teacher: Artifact, task: Task, students: Sequence[Artifact], folder: Path | None = None
) -> StudentsBenchmark:
    """Score a teacher and artifacts that come from it, on its task.

    Args:
        teacher: scored too.
        task: with texts to choose by.
        students: their names differ.
        folder: keeps each score, so that a later run takes those of unchanged artifacts.

    Raises:
        ConfigError: they cannot be rows of one table, or there are no texts to choose by.
    """
    check_scorable(teacher, task)
    _check(teacher, students)
    first, *rest = (
        _cached_score(each, task, folder / f"{each.name}.json") if folder else _scored(each, task)
        for each in track((teacher, *students), "score", 1 + len(students))
    )
    return StudentsBenchmark(
        task=task.name,
        metric=task.metric,
        labels=task.dev.label_ids,
        label_names=task.labels,
        chosen_on=task.chosen_on,
        environment=environment(),
        teacher=first,
        students=tuple(rest),
    )
