"""The card of an artifact, `artifact.json`: what it is, where it came from, and its files."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field

from bertender.core.config import Record
from bertender.core.errors import NotAnArtifactError
from bertender.core.findings import Findings
from bertender.core.machine import installed_versions

# --- from bertender.core.card_versions
# Schemas of `artifact.json`: the one that is written, and how earlier ones are read.
#
# Schema 1 had `metrics`, one dictionary without a type. Schema 2 has `findings`.

SCHEMA_VERSION: Final = 2

Values = Mapping[str, Any]
"""Contents of a JSON object."""


def current_schema(card: Values) -> Values:
    """Return a card of any known schema as one of the current schema.

    Raises:
        NotAnArtifactError: the schema is not a known one.
    """
    version = card.get("schema_version", 1)
    if not isinstance(version, int) or version not in READERS:
        raise NotAnArtifactError(
            f"schema_version is {version!r}, and this version of bertender reads "
            f"{', '.join(map(str, READERS))}. Install the version of bertender that wrote the "
            "artifact (its `versions` names it), or build the artifact again with this one."
        )
    return READERS[version](card)


def _from_schema_1(card: Values) -> Values:
    """Return a card of schema 1 with its metrics as findings; unknown metrics are left out."""
    metrics = card.get("metrics", {})
    try:
        parts = {name: convert(metrics) for name, convert in PARTS_OF_1.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise NotAnArtifactError(
            f"its metrics are not those of schema 1: {error!r}. Build the artifact again."
        ) from None
    findings = {name: part for name, part in parts.items() if part is not None}
    rest = {name: value for name, value in card.items() if name != "metrics"}
    return {**rest, "schema_version": SCHEMA_VERSION, "findings": findings}


READERS: Mapping[int, Callable[[Values], Values]] = {
    1: _from_schema_1,
    SCHEMA_VERSION: lambda card: card,
}
"""Schema version -> what makes a card of the current schema of it."""


def _training(metrics: Values) -> Values | None:
    """Return the training of a stage that trains, or of a quantization by `qat`."""
    trained = metrics if "losses" in metrics else metrics.get("quantization", {})
    if "losses" not in trained:
        return None
    earlier = _earlier_phases(trained)
    # of encoders, the steps of all phases were counted together
    together = bool(earlier) and not isinstance(trained["earlier_losses"], Mapping)
    return {
        "steps": None if together else trained.get("steps"),
        "losses": _rows(trained["losses"]),
        "epochs": _rows(trained["epochs"]),
        "earlier_phases": earlier,
        "together": {
            task: {**other, "epochs": _rows(other["epochs"])}
            for task, other in trained.get("together", {}).items()
        },
        **_picked(trained, "unlabelled_texts", "augmented_texts"),
    }


def _earlier_phases(trained: Values) -> list[Values]:
    """Return the phases before the last: by name, or without one for encoders."""
    losses = trained.get("earlier_losses", {})
    if isinstance(losses, Mapping):
        return [{"name": name, "losses": _rows(rows)} for name, rows in losses.items()]
    epochs: Sequence[list[Values]] = trained.get("earlier_epochs") or [[] for _ in losses]
    return [
        {"losses": _rows(rows), "epochs": _rows(scores)}
        for rows, scores in zip(losses, epochs, strict=False)
    ]


def _scores(metrics: Values) -> Values | None:
    """Return the held-out scores; before some texts were set apart, these chose as well."""
    scored = metrics if "score" in metrics else metrics.get("quantization", {})
    if "score" not in scored:
        return None
    return {"chosen_on": "dev", **_picked(scored, "chosen_on", "score", "score_before", "choice")}


def _pruning(metrics: Values) -> Values | None:
    if "rounds" not in metrics:
        return None
    return {
        "rounds": [_round(each) for each in metrics["rounds"]],
        **_picked(metrics, "unpruned", "layers", "vocabulary", "latency"),
    }


def _round(values: Values) -> Values:
    same = _picked(values, "heads", "neurons", "score_after_cut", "score", "rescaled")
    return {
        **same,
        "head_importance": values.get("head_importance") or None,
        "remaining_heads": values.get("heads_kept"),
    }


def _numbers(metrics: Values) -> Values | None:
    """Return the largest number; JSON held null where it was beyond all numbers."""
    numbers = metrics.get("numbers")
    return numbers and {**numbers, "largest": _number(numbers["largest"], math.inf)}


def _quantization(metrics: Values) -> Values | None:
    values = metrics.get("quantization")
    if not values:
        return None
    return {
        **_picked(values, *SAME_IN_QUANTIZATION),
        "saturation": _saturation(values),
        "product_check": _product_check(values),
        "sensitivity": _sensitivity(values),
    }


SAME_IN_QUANTIZATION = (
    "target",
    "products",
    "running_in_integers",
    "float_nodes",
    "operators",
    "products_of_4_bits",
    "largest_difference_between_products",
    "ranges",
    "tried",
)


def _saturation(values: Values) -> Values | None:
    """Return the deviation of sums; the earliest cards compared logits, which shows less."""
    saturation = values.get("saturation") or {}
    return saturation if "largest_deviation" in saturation else None


def _product_check(values: Values) -> Values | None:
    check = values.get("product_check")
    if not check:
        return None
    worst = {
        node: {
            "kind": figures["kind"],
            "figures": {name: value for name, value in figures.items() if name != "kind"},
        }
        for node, figures in check["worst"].items()
    }
    return {"checked": check["checked"], "worst": worst}


def _sensitivity(values: Values) -> Values | None:
    if "sensitivity" not in values:
        return None
    return {
        "by_node": {node: _number(value) for node, value in values["sensitivity"].items()},
        **_picked(values, "curvature", "drops", "returned"),
    }


def _picked(values: Values, *names: str) -> Values:
    """Return the values of some names, where there are any."""
    return {name: values[name] for name in names if values.get(name) is not None}


def _rows(rows: list[Values]) -> list[Values]:
    return [{name: _number(value) for name, value in row.items()} for row in rows]


def _number(value: float | None, null: float = math.nan) -> float:
    """Return a number; schema 1 held null where it was not a finite one."""
    return null if value is None else value


PARTS_OF_1: Mapping[str, Callable[[Values], Any]] = {
    "parameters": lambda metrics: metrics.get("parameters"),
    "training": _training,
    "scores": _scores,
    "pruning": _pruning,
    "graph": lambda metrics: metrics.get("graph"),
    "numbers": _numbers,
    "quantization": _quantization,
    "parity": lambda metrics: metrics.get("parity"),
}
"""Part of the findings -> what makes it of the metrics of schema 1, None where they have none."""

# --- from bertender.core.card
# The card of an artifact, `artifact.json`: what it is, where it came from, and its files.

CARD_NAME = "artifact.json"
TIMING_NAME = "timing.json"
"""Next to the card: how long the run took, which is no part of the artifact."""
RECORDED_LIBRARIES = (
    "bertender",
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "optimum-onnx",
    "scikit-learn",
)

Kind = Literal["torch", "onnx", "bag-of-words"]


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
    left_out: LeftOutRows | None = Field(None, description="what --skip-bad-rows left out")
    data: dict[str, str] = Field(
        default_factory=dict,
        description="digest of the examples of `train` and `dev`; none in older cards",
    )


def _inside(name: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError("a file of an artifact must lie inside it")
    return name


FileName = Annotated[str, AfterValidator(_inside)]


class Card(Record):
    """The content of `artifact.json`. It holds no time stamp: equal work gives equal cards."""

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


def read_card(directory: Path) -> Card:
    """Return the card in a directory, of this schema or an earlier one.

    Raises:
        NotAnArtifactError: there is none, or none that can be read.
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
    try:
        return Card.model_validate(current_schema(_json_object(path)))
    except NotAnArtifactError as error:
        raise NotAnArtifactError(f"{path} cannot be read as an artifact card: {error}") from None
    except (OSError, ValueError) as error:  # pydantic's own is a ValueError
        raise NotAnArtifactError(
            f"{path} cannot be read as an artifact card: {error}. Build the artifact again, with "
            "this version of bertender."
        ) from None


def _json_object(path: Path) -> dict[str, Any]:
    """Return what a file of JSON holds, or raise ValueError where it is not an object."""
    text = path.read_text(encoding="utf-8")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"its JSON is a {type(values).__name__}, and must be an object")
    return values


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the installed version of each library that shapes an artifact."""
    return installed_versions(RECORDED_LIBRARIES)
