"""ONNX Runtime's own optimizer of encoders, as it is run on a file before anything opens it."""

from __future__ import annotations

from pathlib import Path

import onnx

from bertender.core.quiet_tools import quiet_tools

__all__ = ["RUNTIME_DOMAIN", "add_runtime_domain", "optimized"]

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
