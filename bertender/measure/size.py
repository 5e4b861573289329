"""Size of a model: parameters, the bytes of its weights, the bytes of its whole artifact."""

from __future__ import annotations

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record

__all__ = ["MODEL_SUFFIXES", "Size", "measure_size"]

MODEL_SUFFIXES = (".safetensors", ".onnx", ".onnx_data", ".onnx.data")
"""Endings of files that hold a graph or weights; an ONNX graph may have weights next to it."""


class Size(Record):
    """Size of a model on disk, as its card recorded it."""

    parameters: int | None = Field(description="None where the card does not hold it")
    model_size_bytes: int = Field(description="weights and graph alone")
    artifact_size_bytes: int = Field(description="with tokenizer and configs: what is deployed")

    @property
    def millions(self) -> float | None:
        """The parameters in millions."""
        return None if self.parameters is None else self.parameters / 1e6


def measure_size(artifact: Artifact, parameters: int | None) -> Size:
    """Return the sizes of an artifact; of its parameters, None is not known."""
    files = artifact.card.files
    return Size(
        parameters=parameters,
        model_size_bytes=sum(
            record.size_bytes for name, record in files.items() if name.endswith(MODEL_SUFFIXES)
        ),
        artifact_size_bytes=sum(record.size_bytes for record in files.values()),
    )
