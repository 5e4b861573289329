"""How big a model is: parameters, the bytes of its weights, the bytes of its whole artifact."""

from __future__ import annotations

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record

__all__ = ["MODEL_SUFFIXES", "Size", "measure_size"]

MODEL_SUFFIXES = (".safetensors", ".onnx", ".onnx_data", ".onnx.data")
"""Endings of files that hold a graph or weights; an ONNX graph may keep weights beside it."""


class Size(Record):
    """What a model takes on disk, as its card recorded it."""

    parameters: int
    model_size_bytes: int = Field(description="weights and graph alone")
    artifact_size_bytes: int = Field(description="with tokenizer and configs: what is deployed")


def measure_size(artifact: Artifact, parameters: int) -> Size:
    """Return the sizes of an artifact whose model has so many parameters."""
    files = artifact.card.files
    return Size(
        parameters=parameters,
        model_size_bytes=sum(
            record.size_bytes for name, record in files.items() if name.endswith(MODEL_SUFFIXES)
        ),
        artifact_size_bytes=sum(record.size_bytes for record in files.values()),
    )
