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
from bertender.models.graph_optimizer import optimized
from export.fusion import check_fusible, prepare_for_fusion, require_fused_attention

__all__ = ["OPTIMIZATIONS", "Optimization"]


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
