"""Files of a graph: one, or, past what protobuf can hold, another next to it for the weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, set_external_data, uses_external_data

from bertender.models.onnx_predictor import MOST_MB, ONNX_DATA_NAME

__all__ = ["MOST_MB", "copy_graph", "move_graph", "save_graph", "weights_size_bytes"]

SMALLEST_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the graph: shape inference reads the numbers of some of them."""


def save_graph(model: onnx.ModelProto, path: Path, external_above_mb: int) -> None:
    """Write a graph at `path`, and replace the one there.

    Args:
        model: with all of its weights in memory; they may be removed from it afterwards.
        path: of the graph. Weights in files of their own lie next to it, as ONNX_DATA_NAME.
        external_above_mb: the most megabytes of weights that stay in the graph itself.
    """
    for stale in _external_files(path):
        stale.unlink(missing_ok=True)  # onnx would append to an earlier file
    if weights_size_bytes(model) > external_above_mb * 10**6:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= SMALLEST_EXTERNAL_BYTES:
                set_external_data(tensor, ONNX_DATA_NAME)
    onnx.save(model, path)
    for written in _external_files(path):
        shutil.copymode(path, written)  # onnx lets its owner alone read it


def move_graph(path: Path, folder: Path) -> Path:
    """Move a graph, with the files of its weights next to it, into a folder of any file system."""
    files = _external_files(path)
    for file in (path, *files):
        shutil.move(file, folder / file.name)
    return folder / path.name


def copy_graph(path: Path, folder: Path) -> Path:
    """Copy a graph, with the files of its weights next to it, into a folder; return the copy."""
    for file in (path, *_external_files(path)):
        shutil.copyfile(file, folder / file.name)
    return folder / path.name


def weights_size_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of a graph's constants; protobuf cannot size a large model as a whole."""
    return sum(tensor.ByteSize() for tensor in model.graph.initializer)


def _external_files(path: Path) -> set[Path]:
    """Return the files next to the graph at `path` that hold its weights; none without a graph."""
    if not path.is_file():
        return set()
    model = onnx.load(path, load_external_data=False)
    return {path.parent / location for location in _locations(model)}


def _locations(model: onnx.ModelProto) -> Iterator[str]:
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            yield ExternalDataInfo(tensor).location
