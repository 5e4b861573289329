"""Golden texts: some real texts of the task in an onnx artifact, with the model's outputs of them.

Whoever brings the artifact to another machine asks the model there about the same texts. They are
a file of the artifact, whose digest the card has. An artifact need not have them: earlier versions
wrote none, and `golden_texts=0` leaves them out, because texts of a task may be private.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ArtifactError

__all__ = ["GOLDEN_NAME", "GoldenText", "GoldenTexts", "read_golden", "write_golden"]

GOLDEN_NAME = "golden.json"


class GoldenText(Record):
    """A text, and the model's outputs of it alone."""

    example: tuple[str, ...] = Field(description="as the model reads it: its text, or its words")
    label: str | tuple[str, ...] = Field(description="one, one for each word, or all of a text")
    logits: tuple[tuple[float, ...], ...] = Field(description="(rows, labels)")
    places: tuple[int, ...] = Field(description="(rows,): what each row is a prediction of")
    tokens: int = Field(description="that the model reads of it")


class GoldenTexts(Record):
    """The content of `golden.json`."""

    runtime: str = Field(description="row of RUNTIMES that computed the logits")
    tolerance: str = Field(description="row of TOLERANCES by which others are compared with them")
    logit_scale: float = Field(description="the largest of the model's source in the parity gate")
    logit_spread: float = Field(description="standard deviation of those over texts, centred")
    texts: tuple[GoldenText, ...]


def write_golden(golden: GoldenTexts, directory: Path) -> None:
    """Write the golden texts of an artifact into its draft."""
    text = golden.model_dump_json(indent=1) + "\n"
    (directory / GOLDEN_NAME).write_text(text, encoding="utf-8")


def read_golden(artifact: Artifact) -> GoldenTexts:
    """Return the golden texts of an artifact.

    Raises:
        ArtifactError: it has none, or its file cannot be read.
    """
    stage = artifact.card.stage
    if GOLDEN_NAME not in artifact.card.files:
        raise ArtifactError(
            f"{artifact.path} has no golden texts, with which a copy of it is compared elsewhere: "
            f"it was made by an earlier version, with --golden-texts 0, or of long texts alone. "
            f"Make it again with `bertender {stage}`, which stores some."
        )
    try:
        text = (artifact.path / GOLDEN_NAME).read_text(encoding="utf-8")
        return GoldenTexts.model_validate_json(text)
    except (OSError, ValidationError) as error:
        raise ArtifactError(
            f"{artifact.path / GOLDEN_NAME} cannot be read: {type(error).__name__}. Make the "
            f"artifact again with `bertender {stage}`."
        ) from None
