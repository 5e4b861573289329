"""What ONNX Runtime reports of a graph, which Triton's backend holds a configuration against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertender.models.onnx_session import open_session
from serve.repository.config_pbtxt import TensorSignature

__all__ = ["reported"]

NAMES = {"tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}

Signatures = tuple[TensorSignature, ...]


def reported(path: Path) -> tuple[Signatures, Signatures]:
    """Return the inputs and the outputs of a graph that ONNX Runtime has opened."""
    session = open_session(path, threads=1)
    return tuple(map(_read, session.get_inputs())), tuple(map(_read, session.get_outputs()))


def _read(tensor: Any) -> TensorSignature:
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape)
    return TensorSignature(tensor.name, NAMES[tensor.type], dims)
