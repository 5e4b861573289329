"""The card of an artifact, `artifact.json`: its model, its origin, and its files."""

from __future__ import annotations

import functools
import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field

from bertender.core.config import Record
from bertender.core.errors import NotAnArtifactError
from bertender.core.findings import Findings
from bertender.core.machine import installed_versions

SCHEMA_VERSION: Final = 2
CARD_NAME = "artifact.json"
TIMING_NAME = "timing.json"
"""Next to the card: duration of the run, which is not part of the artifact."""
RECORDED_LIBRARIES = (
    "bertender",
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "scikit-learn",
)

MODEL_SUFFIXES = (".safetensors", ".onnx", ".onnx_data", ".onnx.data", ".xml", ".bin")
"""Suffixes of files with a graph or weights; an ONNX graph may have weights next to it, and one of
OpenVINO has."""

Kind = Literal["torch", "onnx", "bag-of-words", "bundle"]


class FileRecord(Record):
    """Size and digest of a file when the artifact was written."""

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


class Calibration(Record):
    """Map from a model's logits to calibrated probabilities.

    Logits and predictions do not change. Labels of a set without `lines` or `points` use the
    sigmoid.
    """

    method: Literal["temperature", "platt", "isotonic"]
    fitted_for: str = Field(
        description="digest of the artifact; another artifact has it of the one it was made from"
    )
    texts: int = Field(description="that it was fitted on")
    temperature: float = Field(1.0, gt=0, description="that logits are divided by")
    lines: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="of platt: label -> slope and shift of its logit"
    )
    points: dict[str, tuple[tuple[float, float], ...]] = Field(
        default_factory=dict,
        description="of isotonic: label -> (logit, probability), in rising order, linear between",
    )

    def words(self, card: str) -> str:
        """Return how probabilities are computed from the logits; `card` says where curves are."""
        if self.method == "temperature":
            return f"calibrated: divide the logits by {self.temperature:.4g} before the softmax"
        return f"calibrated by {self.method}: the curve of each label is in {card}"


class TaskRecord(Record):
    """Task of the model: enough to read its logits, and to find its data again."""

    name: str
    problem_type: str = Field(
        description="a row of PROBLEMS, or of an encoder what it was trained for: "
        "masked_language_model or replaced_token_detection"
    )
    labels: tuple[str, ...] = Field(description="in the order of the logits")
    text_columns: tuple[str, ...] = Field(description="one, or two for sentence pairs")
    metric: str
    source: dict[str, Any] = Field(default_factory=dict, description="the TaskConfig it came from")
    fitted: dict[str, float] = Field(
        default_factory=dict,
        description="what was fitted on data besides the weights: `no_answer`, how far the logits "
        "of an answer must be above those of none",
    )
    calibration: Calibration | None = Field(None, description="by `calibrate`")
    left_out: LeftOutRows | None = Field(None, description="what --skip-bad-rows left out")
    data: dict[str, str] = Field(
        default_factory=dict,
        description="digest of the examples of `train` and `dev`; none in older cards",
    )

    @property
    def text_count(self) -> int | None:
        """Number of text columns; None for an imported model, whose files do not say whether it
        reads pairs."""
        count = len(self.text_columns)
        return count if self.source or count > 1 else None


def _inside(name: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError("a file of an artifact must lie inside it")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


class Card(Record):
    """The content of `artifact.json`. It has no time stamp: equal runs give equal cards."""

    model_config = ConfigDict(ser_json_inf_nan="strings")  # as null, they would not be numbers

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Kind
    family: str = Field(description="the model_type of transformers, a row of FAMILIES")
    task: TaskRecord
    precision: str
    max_length: int | None = Field(
        None,
        description="of a text in tokens: longer ones are truncated, in training and ever after; "
        "None where the tokenizer's own limit is all there is",
    )
    stage: str
    config: dict[str, Any]
    seed: int
    parent: Parent | None
    versions: dict[str, str]
    files: dict[FileName, FileRecord]
    findings: Findings = Findings()

    @property
    def model_size_bytes(self) -> int:
        """Size of weights and graph alone."""
        files = self.files.items()
        return sum(file.size_bytes for name, file in files if name.endswith(MODEL_SUFFIXES))


def read_card(directory: Path) -> Card:
    """Return the card in a directory.

    Raises:
        NotAnArtifactError: the card is missing or cannot be read.
    """
    path = directory / CARD_NAME
    if not directory.is_dir():
        raise NotAnArtifactError(
            f"no artifact at {directory}: there is no such directory. "
            "Give the directory that a bertender stage wrote (its --out)."
        )
    if not path.is_file():
        raise NotAnArtifactError(
            f"{directory} is not an artifact: it has no {CARD_NAME}. Give the directory that a "
            "bertender stage wrote (its --out); a finished model becomes one with `bertender "
            "import`."
        )
    unreadable = f"{path} cannot be read as an artifact card"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"its JSON is a {type(values).__name__}, and must be an object")
        if (version := values.get("schema_version")) == SCHEMA_VERSION:
            return Card.model_validate(values)
    except (OSError, ValueError) as error:  # errors of pydantic and json are ValueErrors
        what = "it is not JSON: " if isinstance(error, json.JSONDecodeError) else ""
        raise NotAnArtifactError(
            f"{unreadable}: {what}{error}. Build the artifact again, with this version of "
            "bertender."
        ) from None
    raise NotAnArtifactError(
        f"{unreadable}: schema_version is {version!r}, and this version of bertender reads "
        f"{SCHEMA_VERSION}. Install the version of bertender that wrote the artifact (its "
        "`versions` names it), or build the artifact again with this one."
    )


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the installed version of each library that affects an artifact."""
    return installed_versions(RECORDED_LIBRARIES)
