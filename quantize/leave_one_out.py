"""The simplest sensitivity: how much nearer the outputs come when a part is left in float."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.progress import track
from bertender.measure.accuracy import predict
from quantize.context import QuantizationContext, Sensitivities
from quantize.curvature import WeightError
from quantize.sensitivity import Write

__all__ = ["leave_one_out"]


def leave_one_out(
    context: QuantizationContext, write: Write, nodes: Sequence[str], error: WeightError
) -> Sensitivities:
    """Return how much nearer the outputs come when one node alone is left in float.

    The distance is the KL divergence from the float model's predictions of training texts.
    """
    texts = context.texts(context.config.sensitivity_texts, "").examples
    wanted, divergence = predict(context.classifier, texts), context.task.problem.divergence

    def loss(*left: str) -> float:
        graph = context.folder / "left-out.onnx"
        write(context, graph, left)
        return divergence(wanted, predict(context.opened(graph), texts))

    everything = loss()
    return Sensitivities(
        {node: everything - loss(node) for node in track(nodes, "leave one out", len(nodes))}
    )
