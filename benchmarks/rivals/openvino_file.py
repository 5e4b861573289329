"""OpenVINO alone: the tokenizer, and the ONNX file compiled with OpenVINO's own settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino

from benchmarks.plain_servers.tokenizer import PlainTokenizer
from benchmarks.rivals.opening import Example, Opening, Predict, inputs_of
from benchmarks.rivals.probabilities import softmax

__all__ = ["open_openvino"]


def open_openvino(opening: Opening) -> Predict:
    """Compile an ONNX file for this CPU, in the precision that OpenVINO takes by itself."""
    tokenizer = PlainTokenizer(opening.folder, opening.max_length)
    settings = {
        "INFERENCE_NUM_THREADS": opening.threads,
        "ENABLE_HYPER_THREADING": True,  # or it takes one thread of each core's two
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    model = core.compile_model(str(opening.folder / "model.onnx"), "CPU", settings)
    inputs = [each.get_any_name() for each in model.inputs]
    request = model.create_infer_request()

    def predict(examples: Sequence[Example]) -> Any:
        arrays = tokenizer.arrays(inputs_of(examples))
        taken = {name: arrays[name] for name in inputs}
        return softmax(request.infer(taken, share_inputs=True)["logits"])

    return predict
