"""Static quantization: scales of activations are found once, on real text, before the model runs.

Nothing is computed of an activation but its rounding, and a text's logits do not depend on what
it is batched with. What is beyond the range of the calibration texts saturates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from quantize.affine import INTEGERS
from quantize.calibration import histograms
from quantize.calibrators import CALIBRATORS, Range
from quantize.context import QuantizationContext, Written
from quantize.dynamic import quantize_rest
from quantize.qdq import QdqIntegers, WeightScales, write_qdq

__all__ = ["calibrated_ranges", "write_static", "write_with_ranges"]


def write_static(
    context: QuantizationContext, target: Path, float_nodes: Sequence[str] = ()
) -> Written:
    """Quantize the float graph into `target`, except some nodes."""
    return write_with_ranges(context, target, calibrated_ranges(context), float_nodes)


def write_with_ranges(
    context: QuantizationContext,
    target: Path,
    ranges: Mapping[str, Range],
    float_nodes: Sequence[str] = (),
    scales: Mapping[str, WeightScales] | None = None,
) -> Written:
    """Quantize the float graph into `target` with ranges that are known, except some nodes.

    `scales` has those of weights that are rounded already, by their products' nodes.
    """
    products = [each for each in context.inventory.products if each.node not in float_nodes]
    with TemporaryDirectory(dir=context.folder) as folder:
        between = Path(folder) / "products.onnx"
        kinds = context.target.activations, context.target.weights
        write_qdq(context.graph, between, products, ranges, QdqIntegers(*kinds, scales or {}))
        quantize_rest(context, between, target, float_nodes)
    quantized = (*(each.node for each in products), *context.inventory.lstms)
    return Written(quantized, context.reasons, {name: ranges[name] for name in sorted(ranges)})


def calibrated_ranges(context: QuantizationContext) -> dict[str, Range]:
    """Return the range of each product's activation, by the tensor's name."""
    config = context.config
    tensors = sorted({product.activation for product in context.inventory.products})
    batches = context.texts(config.calibration_texts, "calibrate")
    clip = CALIBRATORS[config.calibrator].clip
    seen = histograms(context.graph, tensors, batches)
    integers = INTEGERS[context.target.activations]
    return {name: clip(seen[name], config.percentile, integers) for name in tensors}
