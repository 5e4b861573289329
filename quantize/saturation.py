"""The saturation probe: does this CPU compute the graph's integers exactly?

x86 without 8-bit dot products adds pairs of products in 16 bits; sums beyond that are cut off
without an error. The probe answers real texts twice, by the graph as it runs and by an emulation
whose products are exact, and compares the logits.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from bertender.core.errors import ModelError
from bertender.core.graph_file import MOST_MB, save_graph
from bertender.core.onnx_predictor import ONNX_NAME
from bertender.core.onnx_session import open_session
from quantize.job import Job

__all__ = ["PROBED_TEXTS", "TOLERATED", "emulated", "probe", "refuse_saturated"]

FloatArray = npt.NDArray[np.float32]
PROBED_TEXTS = 64
TOLERATED = 0.02
"""Mean difference of the logits over the largest of them."""


def probe(job: Job, graph: Path) -> dict[str, Any]:
    """Compare a graph's answers with exact ones; raise ModelError where they differ.

    Returns:
        How far they are apart, and how many products could be computed exactly: those of
        MatMulNBits and of LSTMs run by the same kernels both times, and prove nothing.
    """
    found, wanted = [], []
    with TemporaryDirectory(dir=job.folder) as folder:
        exact = open_session(emulated(graph, Path(folder) / ONNX_NAME), optimize=False)
        running = open_session(graph)
        inputs = [node.name for node in running.get_inputs()]
        for batch in job.texts(PROBED_TEXTS, "probe saturation"):
            arrays = {name: batch.arrays[name] for name in inputs}
            found.append(running.run(["logits"], arrays)[0])
            wanted.append(exact.run(["logits"], arrays)[0])
    differences = refuse_saturated(np.concatenate(found), np.concatenate(wanted))
    return {"products": _emulable(graph), **differences}


def refuse_saturated(found: FloatArray, wanted: FloatArray) -> dict[str, Any]:
    """Return how far logits (texts, labels) are from the exact; raise ModelError past TOLERATED."""
    scale = float(np.abs(wanted).max()) or 1.0
    differences = np.abs(found - wanted) / scale
    summary = {
        "texts": len(wanted),
        "mean_difference": float(differences.mean()),
        "max_difference": float(differences.max()),
    }
    if summary["mean_difference"] > TOLERATED:
        raise ModelError(
            f"this CPU does not add the graph's 8-bit products exactly: logits are off by "
            f"{summary['mean_difference']:.3f} of the largest on average, allowed is {TOLERATED}. "
            "Its instructions saturate in 16 bits. Weights of 7 bits, by --target avx2, do not; if "
            "these are of 7 bits already, serve the float model here."
        )
    return summary


def emulated(graph: Path, target: Path) -> Path:
    """Write a graph whose integer products are computed in float64, where their sums are exact.

    Products between QuantizeLinear pairs need no change: unfused they run in float32, which does
    not saturate.
    """
    model = onnx.load(graph)
    nodes = [each for node in model.graph.node for each in _exact(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    save_graph(model, target, MOST_MB)
    return target


def _emulable(graph: Path) -> int:
    """Count the products that the emulation computes exactly."""
    nodes = onnx.load(graph, load_external_data=False).graph.node
    rounded = {each.output[0] for each in nodes if each.op_type == "DequantizeLinear"}
    # quantizing look-ups made each Gemm a MatMul of its weight turned round
    rounded |= {
        each.output[0] for each in nodes if each.op_type == "Transpose" and each.input[0] in rounded
    }
    return sum(
        node.op_type == "MatMulInteger"
        or (node.op_type in ("MatMul", "Gemm") and node.input[1] in rounded)
        for node in nodes
    )


def _exact(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if node.op_type != "MatMulInteger":
        return [node]
    made, centred = [], []
    for value, zero in ((node.input[0], node.input[2]), (node.input[1], node.input[3])):
        stem = f"{node.name}/{value}"
        made += [
            helper.make_node("Cast", [value], [f"{stem}/wide"], to=TensorProto.DOUBLE),
            helper.make_node("Cast", [zero], [f"{stem}/zero"], to=TensorProto.DOUBLE),
            helper.make_node("Sub", [f"{stem}/wide", f"{stem}/zero"], [f"{stem}/centred"]),
        ]
        centred.append(f"{stem}/centred")
    product = f"{node.name}/exact"
    made.append(helper.make_node("MatMul", centred, [product]))
    made.append(helper.make_node("Cast", [product], list(node.output), to=TensorProto.INT32))
    return made
