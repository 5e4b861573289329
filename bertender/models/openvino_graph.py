"""OpenVINO as a predictor, on the CPU and quietly. It is imported when a graph is opened."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.cores import threads_by_default
from bertender.core.errors import ModelError, RuntimeMissingError
from bertender.models.cpu_flags import lacking_flags
from bertender.models.openvino_sums import check_sums, has_static_scales
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.text.batch import Batch

__all__ = [
    "Bfloat16Predictor",
    "OpenVinoPredictor",
    "compiled",
    "compiles_shapes",
    "import_openvino",
]

TELEMETRY = "openvino_telemetry"


class OpenVinoPredictor:
    """A graph compiled by OpenVINO for this CPU; arrays that it does not take are left out.

    What is not 8-bit is computed in float32, where OpenVINO would take bfloat16 by itself.

    Args:
        path: the graph.
        threads: of one inference; 0 takes OMP_NUM_THREADS, and OpenVINO's default where it is not
            set.
        spinning: as ONNX Runtime takes it; threads of OpenVINO sleep when idle in either case.
        concurrent_runs: inferences at once, each of `threads`.

    Raises:
        RuntimeMissingError: OpenVINO is not installed.
        ModelError: OpenVINO cannot open the graph, or would add its products wrongly on this CPU.
    """

    float_type = "f32"
    """By OpenVINO's name."""

    def __init__(
        self, path: Path, threads: int = 0, *, spinning: bool = True, concurrent_runs: int = 1
    ) -> None:
        check_sums(import_openvino(), path)
        self.compiled = compiled(path, threads, concurrent_runs, self.float_type)
        self.inputs = tuple(each.get_any_name() for each in self.compiled.inputs)
        self._requests = threading.local()  # a request runs one batch at a time

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch."""
        arrays = {name: batch.arrays[name] for name in self.inputs}
        if not hasattr(self._requests, "own"):
            self._requests.own = self.compiled.create_infer_request()
        # the outputs are copied: the next batch overwrites those of the request
        logits = self._requests.own.infer(arrays, share_inputs=True)["logits"]
        return np.asarray(logits, dtype=np.float32)


class Bfloat16Predictor(OpenVinoPredictor):
    """The same, and what is not 8-bit is computed in bfloat16.

    Raises:
        RuntimeMissingError: OpenVINO is not installed, or this CPU has no bfloat16.
        ModelError: OpenVINO cannot open the graph.
    """

    float_type = "bf16"

    def __init__(self, path: Path, threads: int = 0, **settings: Any) -> None:
        if lacking := lacking_flags(RUNTIMES["openvino-bf16"]):
            raise RuntimeMissingError(
                f"runtime 'openvino-bf16' needs a CPU with {' or '.join(lacking)}, and this one "
                "has neither. Use runtime 'openvino'."
            )
        super().__init__(path, threads, **settings)


def import_openvino() -> ModuleType:
    """Import OpenVINO without its telemetry.

    Raises:
        RuntimeMissingError: it is not installed.
    """
    with _no_telemetry():
        try:
            return importlib.import_module("openvino")
        except ImportError as error:
            raise RuntimeMissingError(
                f"runtime 'openvino' cannot be imported: {error}. Install it with "
                f"`{RUNTIMES['openvino'].install}`, or use runtime {DEFAULT_RUNTIME!r}."
            ) from None


@contextmanager
def _no_telemetry() -> Iterator[None]:
    """Hide the package by which the import of OpenVINO would send an event."""
    absent = object()
    before: Any = sys.modules.get(TELEMETRY, absent)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if before is not absent:
            sys.modules[TELEMETRY] = before


def compiled(
    graph: Path | bytes,
    threads: int = 0,
    concurrent_runs: int = 1,
    float_type: str = "f32",
    *,
    profile: bool = False,
) -> Any:
    """Compile a graph for this CPU; see `OpenVinoPredictor`.

    With `profile`, an inference request knows how long each node took.
    """
    openvino = import_openvino()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": concurrent_runs,
        "INFERENCE_PRECISION_HINT": float_type,
        # bound to cores, threads wait there for other work; on quiet ones nothing was gained
        "ENABLE_CPU_PINNING": False,
        "PERF_COUNT": profile,
    }
    threads = threads or threads_by_default()
    if threads:
        # as many as are asked for, where OpenVINO would take one of each core's two
        every = threads * concurrent_runs
        settings |= {"INFERENCE_NUM_THREADS": every, "ENABLE_HYPER_THREADING": True}
    try:
        core = openvino.Core()
        model = core.read_model(graph if isinstance(graph, bytes) else str(graph))
        return core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        name = "a part of a graph" if isinstance(graph, bytes) else graph
        raise ModelError(
            f"OpenVINO {openvino.__version__} cannot open {name}: {_first_line(error)}. Use "
            "runtime 'onnxruntime', or export and quantize the model again."
        ) from None


def compiles_shapes(graph: Path) -> bool:
    """Return whether the first batch of each shape takes much longer: with static scales it does.

    Its 8-bit products are prepared for each shape anew; floats are hardly (`docs/runtimes.md`).
    """
    return has_static_scales(import_openvino(), graph)


def _first_line(error: RuntimeError) -> str:
    """Return the first line of a message that says something: the others trace C++ files."""
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next((line for line in lines if line and not line.startswith("Exception from")), "")
