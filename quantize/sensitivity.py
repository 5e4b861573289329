"""SENSITIVITIES: which parts of a model suffer most from being quantized.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840) give more bits to layers whose loss is curved most. The
curvature is one row here; the plainest measure, the loss that a part's quantization adds, another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertender.core.progress import track
from bertender.measure.accuracy import predict
from quantize.context import QuantizationContext, Sensitivities, Written
from quantize.curvature import WeightError, by_eigenvalue, by_trace

__all__ = ["SENSITIVITIES", "Sensitivity", "Write", "divergence"]

FloatArray = npt.NDArray[np.float32]
Write = Callable[[QuantizationContext, Path, Sequence[str]], Written]
"""(context, graph to write, nodes to leave as they were)"""


@dataclass(frozen=True)
class Sensitivity:
    """A row of SENSITIVITIES."""

    summary: str
    measure: Callable[[QuantizationContext, Write, Sequence[str], WeightError], Sensitivities]
    """(context, how to quantize, nodes, what a weight loses) -> sensitivities; larger is worse"""


def _leave_one_out(
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


SENSITIVITIES: Mapping[str, Sensitivity] = {
    "leave-one-out": Sensitivity("what leaving one part in float wins of the loss", _leave_one_out),
    "hessian-trace": Sensitivity("the loss's mean curvature by a part's weights", by_trace),
    "hessian-eigenvalue": Sensitivity("the loss's largest curvature by them", by_eigenvalue),
}
