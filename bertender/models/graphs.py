"""Graphs of ONNX as files: written with their weights, moved, and optimized."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, set_external_data, uses_external_data

from bertender.core.progress import quiet_tools
from bertender.models.onnx_session import ONNX_DATA_NAME

# --- from bertender.models.graph_file
# Files of a graph: one, or, past what protobuf can hold, another next to it for the weights.

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


# --- from bertender.models.graph_optimizer
# ONNX Runtime's own optimizer of encoders, as it is run on a file before anything opens it.

RUNTIME_DOMAIN = "com.microsoft"
"""The set of ONNX Runtime's own operators."""
PATTERNS = "bert"
"""The optimizer's name for the patterns of encoders."""


def optimized(graph: Path, *, fuse: bool, only: str | None = None) -> onnx.ModelProto:
    """Return a graph with its constants folded and, if asked, its layers fused.

    Args:
        graph: its file.
        fuse: whether to make single operators of many.
        only: the one option of FusionOptions that is enabled; None leaves them as they are.
    """
    # loaded here, because it takes a second that other commands need not wait
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    options = FusionOptions(PATTERNS)
    # the other form counts a text's tokens, and is right only where padding stands behind them
    options.use_raw_attention_mask(True)
    if only is not None:
        for name in [name for name in vars(options) if name.startswith("enable_")]:
            setattr(options, name, name == only)
    with quiet_tools():  # they expect all layers to have equal heads
        optimizer = optimize_model(
            str(graph),
            PATTERNS,
            num_heads=0,  # 0: each layer's own, by its shapes
            hidden_size=0,
            optimization_options=options,
            opt_level=1,
            only_onnxruntime=not fuse,
        )
    model: onnx.ModelProto = optimizer.model
    _keep_used_domains(model)
    return model


def add_runtime_domain(model: onnx.ModelProto) -> None:
    """List ONNX Runtime's own operators among those of a graph."""
    if RUNTIME_DOMAIN not in {each.domain for each in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(RUNTIME_DOMAIN, 1))


def _keep_used_domains(model: onnx.ModelProto) -> None:
    """List the operator sets that a graph needs; ONNX Runtime lists all that it knows."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    del model.opset_import[:]
    for domain in sorted({node.domain for node in model.graph.node}):
        model.opset_import.append(onnx.helper.make_opsetid(domain, versions.get(domain, 1)))
