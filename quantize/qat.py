"""Quantization-aware training, and the graph with the scales that were learned.

Zafrir et al. 2019 (Q8BERT, arXiv 1910.06188): fine-tune with the errors of 8 bits in the forward
pass. Besides the labels, the float model's own logits are learned by default. The graph is written
from the learned ranges, so that its outputs are those of the fake-quantized model.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from quantize.affine import INTEGERS
from quantize.context import QuantizationContext, Written
from quantize.fake_quantization import RoundedWeight
from quantize.static import write_with_ranges
from quantize.training import check_shared, start_of, train_graph

__all__ = ["check_trainable", "write_trained"]


def write_trained(context: QuantizationContext, target: Path) -> Written:
    """Train the float model with 8-bit errors, and write its graph to `target`."""
    start = start_of(context)
    check_shared(start)
    integers = INTEGERS[context.target.weights]
    weights = {path: RoundedWeight(integers) for path in start.paths.values()}
    trained = train_graph(start, weights, start.tables, target)
    return trained.report(write_with_ranges(trained.context, target, trained.ranges))


def check_trainable(model: PreTrainedModel) -> None:
    """Raise ModelError for a model with an LSTM, before anything is trained."""
    if any(isinstance(each, nn.LSTM) for each in model.modules()):
        raise ModelError(
            f"a {model.config.model_type!r} model has an LSTM, and schemes that train round "
            "linear layers alone. Export it, and quantize it with --scheme dynamic."
        )
