"""Stand-in for Triton's backend `onnxruntime`, as a backend in Python: the bundled server has none.

It reads the same files and the same configuration, holds inputs and outputs against it, and runs
the same graph in ONNX Runtime. It fails at a token, and writes the shapes that it is given, where a
test asks for that by the environment.
"""

import json
import os
import sys
import time

# the stub reads no PYTHONPATH itself, and so would find other packages than who starts it
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import triton_python_backend_utils as triton  # type: ignore[import-not-found]  # noqa: E402

BREAK_VARIABLE, LOG_VARIABLE = "STAND_IN_BREAK", "STAND_IN_LOG"
LOAD_VARIABLE = "STAND_IN_LOAD_S"


class TritonPythonModel:
    def initialize(self, args):
        time.sleep(float(os.environ.get(LOAD_VARIABLE, 0)))
        self.config = json.loads(args["model_config"])
        folder = Path(args["model_repository"], args["model_version"])
        self.session = onnxruntime.InferenceSession(folder / "model.onnx")
        self.expected = {each["name"]: each for each in self.config["input"]}
        assert self.config["max_batch_size"] == 0
        assert self.expected.keys() == {each.name for each in self.session.get_inputs()}
        tensors = (*self.session.get_inputs(), *self.session.get_outputs())
        # a graph may have more outputs than are declared, but no more inputs
        for declared in (*self.config["input"], *self.config["output"]):
            (own,) = [each for each in tensors if each.name == declared["name"]]
            shape = [dim if isinstance(dim, int) else -1 for dim in own.shape]
            assert [int(dim) for dim in declared["dims"]] == shape, (own.name, own.shape)

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        arrays = {each.name(): each.as_numpy() for each in request.inputs()}
        log(json.dumps([*arrays["input_ids"].shape]))
        for name, array in arrays.items():
            assert array.ndim == len(self.expected[name]["dims"]), (name, array.shape)
            assert self.expected[name]["data_type"] == f"TYPE_{array.dtype.name.upper()}"
        broken = os.environ.get(BREAK_VARIABLE)
        if broken and (arrays["input_ids"] == int(broken)).any():
            return triton.InferenceResponse(error=triton.TritonError("out of memory on the device"))
        (logits,) = self.session.run(["logits"], arrays)
        return triton.InferenceResponse([triton.Tensor("logits", np.asarray(logits))])


def log(line):
    if path := os.environ.get(LOG_VARIABLE):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")
