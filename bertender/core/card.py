"""The card of an artifact, `artifact.json`: what it is, where it came from, and its files."""

from __future__ import annotations

import functools
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from bertender.core.config import Record
from bertender.core.errors import NotAnArtifactError

__all__ = [
    "CARD_NAME",
    "Card",
    "FileRecord",
    "Kind",
    "LeftOutRow",
    "LeftOutRows",
    "Parent",
    "ProblemType",
    "TaskRecord",
    "library_versions",
    "read_card",
]

CARD_NAME = "artifact.json"
RECORDED_LIBRARIES = (
    "bertender",
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnxruntime",
    "optimum-onnx",
    "scikit-learn",
)

Kind = Literal["torch", "onnx", "bag-of-words"]
ProblemType = Literal[
    "single_label_classification",
    "token_classification",
    "masked_language_model",
    "replaced_token_detection",
]


class FileRecord(Record):
    """What a file held when the artifact was written."""

    sha256: str
    size_bytes: int


class Parent(Record):
    """The artifact that this one was made from."""

    digest: str
    path: str = Field(description="relative to this artifact's directory")


class LeftOutRow(Record):
    """A row of a data file that could not be used."""

    file: str
    place: str = Field(description="its line or row, and the column where one is wrong")
    reason: str


class LeftOutRows(Record):
    """The rows of a task's files that were left out."""

    count: int
    first: tuple[LeftOutRow, ...] = Field(description="the first of them; all are counted")


class TaskRecord(Record):
    """What the model answers: enough to read its logits, and to find its data again."""

    name: str
    problem_type: ProblemType
    labels: tuple[str, ...] = Field(description="in the order of the logits")
    text_columns: tuple[str, ...] = Field(description="one, or two for sentence pairs")
    metric: str
    source: dict[str, Any] = Field(default_factory=dict, description="the TaskConfig it came from")
    left_out: LeftOutRows | None = Field(None, description="what --skip-bad-rows left out")


def _inside(name: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError("a file of an artifact must lie inside it")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


class Card(Record):
    """The content of `artifact.json`. It holds no time stamp: equal work gives equal cards."""

    schema_version: Literal[1] = 1
    kind: Kind
    family: str = Field(description="the model_type of transformers, a row of FAMILIES")
    task: TaskRecord
    precision: str
    stage: str
    config: dict[str, Any]
    seed: int
    parent: Parent | None
    versions: dict[str, str]
    files: dict[FileName, FileRecord]
    metrics: dict[str, Any] = Field(default_factory=dict)


def read_card(directory: Path) -> Card:
    """Return the card in a directory, or raise NotAnArtifactError where there is none to read."""
    path = directory / CARD_NAME
    if not directory.is_dir():
        raise NotAnArtifactError(
            f"no artifact at {directory}: there is no such directory. "
            "Give the directory that a bertender stage wrote (its --out)."
        )
    if not path.is_file():
        raise NotAnArtifactError(
            f"{directory} is not an artifact: it has no {CARD_NAME}. A plain transformers model "
            "becomes one with `bertender finetune --teacher`."
        )
    try:
        return Card.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError, OSError) as error:
        raise NotAnArtifactError(
            f"{path} cannot be read as an artifact card: {error}. Build the artifact again, with "
            "this version of bertender."
        ) from None


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the installed version of each library that shapes an artifact."""
    installed = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    return {name: installed[name] for name in RECORDED_LIBRARIES if name in installed}
