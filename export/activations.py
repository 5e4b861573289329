"""Largest numbers of a graph on real texts, checked before it is stored in float16.

The graph is run in float32 with two outputs more for each tensor, its least and its largest
number, so that a check of many texts keeps no activation. It is the graph as it was traced: a
fused operator would hide the attention scores inside it. Masks are not activations, and left out:
they stand in the graph as numbers that nothing else reaches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization.calibrate import CalibrationDataReader, MinMaxCalibrater
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import ModelError
from bertender.models.graph_file import MOST_MB, save_graph
from bertender.models.onnx_predictor import ONNX_NAME
from bertender.text.batch import Encode
from bertender.text.example import Example
from export.half_range import fit_half_range

__all__ = [
    "FLOAT16_LARGEST",
    "SAFE_SHARE",
    "Reach",
    "check_overflow",
    "largest_numbers",
]

logger = logging.getLogger(__name__)

FLOAT16_LARGEST = 65504.0
SAFE_SHARE = 0.5
"""Of it, as the texts that are looked at are few: others may reach further."""
MASK = 1e30
BATCH_TEXTS = 8
SHOWN = 3
"""Nodes that an error names, the worst first."""


class Reach(Record):
    """The largest absolute number at one place of a graph."""

    place: str = Field(description="operator and node that give it, or the name of a weight")
    largest: float


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Token batches as the calibrator asks for them."""

    def __init__(self, feeds: Iterator[dict[str, Any]]) -> None:
        self.feeds = feeds

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def check_overflow(reaches: Sequence[Reach], texts: int, *, allow: bool) -> None:
    """Raise ModelError, or warn, where float16 could not hold what a graph computes.

    Args:
        reaches: of every place, as `largest_numbers` gives them.
        texts: on how many texts they were found.
        allow: only warn.
    """
    allowed = SAFE_SHARE * FLOAT16_LARGEST
    beyond = [reach for reach in reaches if reach.largest > allowed]
    if not beyond:
        return
    worst = "; ".join(f"{reach.place} reaches {reach.largest:.4g}" for reach in beyond[:SHOWN])
    message = (
        f"{len(beyond)} places of this model compute numbers that float16 may not hold, on {texts} "
        f"texts: {worst}; allowed is {allowed:.4g}, {SAFE_SHARE:g} of the largest float16. Use "
        "--precision bfloat16 or float32, or --overflow allow if the logits are proven right."
    )
    if not allow:
        raise ModelError(message)
    logger.warning(message)


def largest_numbers(graph: Path, encode: Encode, examples: Sequence[Example]) -> list[Reach]:
    """Return the largest absolute number of each activation and weight, the largest first.

    Args:
        graph: in float32, its masks as they were traced.
        encode: its tokenizer.
        examples: its input texts.
    """
    model = onnx.load(graph)
    givers = {name: node for node in model.graph.node for name in node.output}
    reached = [(f"weight {name}", largest) for name, largest in _weights(model)]
    reached += [
        (f"{givers[name].op_type} {givers[name].name or name}", largest)
        for name, largest in _activations(model, encode, examples)
        if name in givers
    ]
    reaches = [Reach(place=place, largest=largest) for place, largest in reached]
    return sorted(reaches, key=lambda reach: (-reach.largest, reach.place))


def _activations(
    model: onnx.ModelProto, encode: Encode, examples: Sequence[Example]
) -> Iterator[tuple[str, float]]:
    """Yield each floating-point tensor with its largest absolute number on some texts."""
    if not examples:  # the parity gate reports what is wrong with that
        return
    fit_half_range(model, MASK)
    with TemporaryDirectory() as folder:
        save_graph(model, Path(folder) / ONNX_NAME, MOST_MB)
        calibrator = MinMaxCalibrater(
            Path(folder) / ONNX_NAME,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            use_external_data_format=True,
        )
        calibrator.augment_graph()
        calibrator.create_inference_session()
        inputs = [entry.name for entry in calibrator.infer_session.get_inputs()]
        calibrator.collect_data(_Reader(_feeds(encode, examples, inputs)))
    for name, reached in calibrator.compute_data().data.items():
        yield name, _largest(np.array(reached.range_value))


def _feeds(
    encode: Encode, examples: Sequence[Example], inputs: Sequence[str]
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(examples), BATCH_TEXTS):
        arrays: Mapping[str, Any] = encode(examples[start : start + BATCH_TEXTS]).arrays
        yield {name: arrays[name] for name in inputs}


def _weights(model: onnx.ModelProto) -> Iterator[tuple[str, float]]:
    """Yield each table of weights; single numbers beyond float16 are masks, and are changed."""
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 1:
            yield tensor.name, _largest(numpy_helper.to_array(tensor))


def _largest(numbers: np.ndarray[Any, Any]) -> float:
    sizes = np.nan_to_num(np.abs(numbers), nan=np.inf)  # no number is beyond all of them
    masks = np.isfinite(sizes) & (sizes >= MASK / 2)
    return float(sizes[~masks].max(initial=0.0))
