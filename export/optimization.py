"""OPTIMIZATIONS: what is done to a graph before it is written.

Opening a graph, ONNX Runtime optimises it in any case, for the machine that it runs on. What is
done here is done for all machines, and stays in the file: `bertender quantize` and other runtimes
find it there. A fused graph has operators that ONNX Runtime alone can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from transformers import PreTrainedModel

from bertender.core.findings import GraphFindings
from bertender.core.quiet_tools import quiet_tools
from export.fusion import check_fusible, prepare_for_fusion, require_fused_attention

__all__ = ["OPTIMIZATIONS", "Optimization", "optimized"]

PATTERNS = "bert"
"""The optimizer's name for the patterns of encoders."""


def _nothing(*arguments: Any) -> None:
    return None


@dataclass(frozen=True)
class Optimization:
    """A row of OPTIMIZATIONS."""

    run: Callable[[Path], onnx.ModelProto]
    """Returns the graph at a path, optimised."""
    accepts: Callable[[PreTrainedModel], None] = _nothing
    """(model) raises where its architecture cannot have what the row promises."""
    prepare: Callable[[PreTrainedModel], None] = _nothing
    """(model) is called before its graph is written."""
    check: Callable[[PreTrainedModel, GraphFindings], None] = _nothing
    """(model, graph) raises where the optimised graph lacks what the row promises."""


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


def _keep_used_domains(model: onnx.ModelProto) -> None:
    """List the operator sets that a graph needs; ONNX Runtime lists all that it knows."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    del model.opset_import[:]
    for domain in sorted({node.domain for node in model.graph.node}):
        model.opset_import.append(onnx.helper.make_opsetid(domain, versions.get(domain, 1)))


OPTIMIZATIONS: Mapping[str, Optimization] = {
    "none": Optimization(onnx.load),
    "basic": Optimization(partial(optimized, fuse=False)),
    "fused": Optimization(
        partial(optimized, fuse=True),
        accepts=check_fusible,
        prepare=prepare_for_fusion,
        check=require_fused_attention,
    ),
}
