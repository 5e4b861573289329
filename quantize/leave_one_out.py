"""The plainest sensitivity: how much nearer the outputs come when a part is left in float."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertender.core.progress import track
from bertender.measure.accuracy import predict
from quantize.context import QuantizationContext, Sensitivities
from quantize.curvature import WeightError
from quantize.sensitivity import Write

__all__ = ["divergence", "leave_one_out"]

FloatArray = npt.NDArray[np.float32]


def leave_one_out(
    context: QuantizationContext, write: Write, nodes: Sequence[str], error: WeightError
) -> Sensitivities:
    """Return how much nearer the answers come when one node alone is left as it was.

    The distance is the KL divergence from the float model's answers to training texts.
    """
    texts = context.texts(context.config.sensitivity_texts, "").examples
    wanted = predict(context.classifier, texts)

    def loss(*left: str) -> float:
        graph = context.folder / "left-out.onnx"
        write(context, graph, left)
        return divergence(wanted, predict(context.opened(graph), texts))

    everything = loss()
    return Sensitivities(
        {node: everything - loss(node) for node in track(nodes, "leave one out", len(nodes))}
    )


def divergence(wanted: FloatArray, actual: FloatArray) -> float:
    """Return the mean KL divergence of answers from wanted ones, both logits (texts, labels)."""
    wanted_log, actual_log = (_log_softmax(each.astype(np.float64)) for each in (wanted, actual))
    return float((np.exp(wanted_log) * (wanted_log - actual_log)).sum(axis=1).mean())


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
