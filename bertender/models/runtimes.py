"""RUNTIMES: the engines that run ONNX files; one is imported when it opens a graph."""

from __future__ import annotations

import importlib
import platform
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.config import Table, on_demand
from bertender.core.errors import ConfigError, ModelError, RuntimeMissingError
from bertender.core.hardware import (
    cpu_facts,
    cpu_has_int8_acceleration,
    gpu_problem,
    threads_by_default,
)
from bertender.core.machine import installed_version
from bertender.models.onnx_session import (
    OTHER_VERSION,
    OnnxPredictor,
    create_session,
    session_options,
)
from bertender.text.batch import Batch

if TYPE_CHECKING:
    import onnxruntime

    from bertender.models.predictor import Predictor

# --- from bertender.models.runtimes
# RUNTIMES: the engines that run ONNX files; one is imported when it opens a graph.


@dataclass(frozen=True)
class Runtime:
    """A row of RUNTIMES. All of them read the same format."""

    title: str
    summary: str
    open: Callable[..., Predictor]
    """(path, threads=0, spinning=True, concurrent_runs=1): a predictor whose `logits` so many
    threads may call at once. `threads` are of one run; those that do not spin suit a busy machine
    """
    package: str
    install: str
    float_type: str = "float32"
    """Data type that it computes floating-point operators in."""
    own_float_types: tuple[str, ...] = ()
    """Precisions of files that it computes in instead, where the file has one of them."""
    cpu_flags: tuple[str, ...] = ()
    """It runs where the CPU has one of these; everywhere without any."""
    exact_on_x86: bool = False
    """It adds 8-bit products exactly on x86 CPUs without instructions for them, too."""
    dynamic_scales: bool = False
    """It multiplies in integers also where the scales of activations are found while running."""
    compiles_shapes: Callable[[Path], bool] = lambda graph: False
    """Whether it takes much longer for the first batch of each shape (`benchmarks/new_lengths`)
    """
    needs_gpu: bool = False
    """It runs on an NVIDIA GPU, and nowhere else."""
    integer_products: bool = True
    """It multiplies in 8-bit integers, so that models are quantized for it."""
    own_operators: bool = False
    """It has ONNX Runtime's own operators: look-ups in tables of 4 bits, attention of 8 bits."""

    def runs_on(self, flags: Collection[str]) -> bool:
        """Return whether a CPU with these flags has what it needs."""
        return not self.cpu_flags or bool({*self.cpu_flags} & {*flags})

    def activations_of(self, precision: str) -> str:
        """Return the data type that activations of a float artifact are rounded to."""
        return precision if precision in self.own_float_types else self.float_type

    @property
    def version(self) -> str | None:
        """Version of its package; None where it is not installed."""
        return installed_version(self.package)


DEFAULT_RUNTIME = "onnxruntime"
ONNXRUNTIME_GPU = (
    "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu[cuda,cudnn]'"
)
"""Both have the same files: of two that are installed, the removal of one leaves half of the other.
"""
OPENVINO = "pip install 'bertender[openvino]'"

RUNTIMES = Table(
    "runtime",
    {
        "onnxruntime": Runtime(
            title="ONNX Runtime",
            summary="runs every graph that bertender writes",
            open=OnnxPredictor,
            package="onnxruntime",
            install="pip install 'bertender[serve]', or 'bertender[train]'",
            exact_on_x86=True,
            dynamic_scales=True,
            own_operators=True,
        ),
        "openvino": Runtime(
            title="OpenVINO",
            summary="runs float graphs, and static 8-bit ones in integers, dynamic ones in float",
            open=on_demand("bertender.models.runtimes:OpenVinoPredictor"),
            package="openvino",
            install=OPENVINO,
            compiles_shapes=on_demand("bertender.models.runtimes:compiles_shapes"),
        ),
        "openvino-bf16": Runtime(
            title="OpenVINO bfloat16",
            summary="the same with bfloat16 for floats: less exact, and with AMX faster",
            open=on_demand("bertender.models.runtimes:Bfloat16Predictor"),
            package="openvino",
            install=OPENVINO,
            float_type="bfloat16",
            compiles_shapes=on_demand("bertender.models.runtimes:compiles_shapes"),
            cpu_flags=("avx512_bf16", "amx_bf16"),
        ),
        "onnxruntime-cuda": Runtime(
            title="ONNX Runtime CUDA",
            summary="runs float graphs on an NVIDIA GPU, meant for those of float16",
            open=on_demand("bertender.models.runtimes:CudaPredictor"),
            package="onnxruntime-gpu",
            install=ONNXRUNTIME_GPU,
            own_float_types=("float16",),
            needs_gpu=True,
            integer_products=False,
        ),
    },
)

WITH_INTEGERS = tuple(name for name, row in RUNTIMES.items() if row.integer_products)
"""Runtimes that models are quantized for."""

RuntimeName = Annotated[str, RUNTIMES.validator()]
"""A row of RUNTIMES, as a setting."""

# --- from bertender.models.runtime_fit
# Which runtimes suit an artifact.

FLOAT_PRECISIONS = ("float32", "float16", "bfloat16")
"""Of artifacts that were not quantized."""


def suits(runtime: str, artifact: Artifact) -> bool:
    """Return whether a row of RUNTIMES runs an onnx artifact as it was made to run."""
    return RUNTIMES[runtime].integer_products or artifact.card.precision in FLOAT_PRECISIONS


def preferred(runtimes: Sequence[str], artifact: Artifact) -> Sequence[str]:
    """Return, of runtimes that suit an onnx artifact, those that it is meant for.

    Of a file in float16, say, these are those that compute in float16, if there are any: others
    turn it back into float32.
    """
    precision = artifact.card.precision
    native = [name for name in runtimes if precision in RUNTIMES[name].own_float_types]
    return native or runtimes


def check_suits(runtime: str, artifact: Artifact) -> None:
    """Raise ConfigError where a quantized artifact would be turned back into floats."""
    if not suits(runtime, artifact):
        raise ConfigError(
            f"runtime={runtime} multiplies no 8-bit integers, and {artifact.path} is of precision "
            f"{artifact.card.precision}: it would be slower than the float model. Give a float "
            "artifact, as `bertender export --precision float16` writes one, or another runtime: "
            f"{', '.join(WITH_INTEGERS)}."
        )


# --- from bertender.models.cpu_flags
# Flags of the CPU that a runtime needs, and those that 8-bit sums need.

X86 = ("x86_64", "amd64")


def lacking_flags(runtime: Runtime) -> tuple[str, ...]:
    """Return the flags of which a runtime needs one, where this CPU has none of them."""
    _, there = cpu_facts()
    return () if runtime.runs_on(there) else runtime.cpu_flags


def saturates() -> bool:
    """Return whether this CPU adds pairs of 8-bit products in 16 bits: x86 without dot products.

    False on systems other than Linux, which do not report the CPU's flags.
    """
    if platform.system() != "Linux" or platform.machine().lower() not in X86:
        return False
    return not cpu_has_int8_acceleration()


# --- from bertender.models.cuda_predictor
# ONNX Runtime on an NVIDIA GPU as a predictor. It is imported when a graph is opened.

CUDA = "onnxruntime-cuda"
PROVIDER = "CUDAExecutionProvider"
ADVICE = f"{OTHER_VERSION} If the GPU has no memory left, or is too old, use runtime 'onnxruntime'."
EXACT = {"use_tf32": "0"}
"""Products of float32 are not rounded to the 10 bits of TF32, which is that provider's default."""


class CudaPredictor(OnnxPredictor):
    """An ONNX Runtime session on the first GPU; arrays that its graph does not take are left out.

    Args:
        path: the graph.
        threads, spinning: of the operators that have no kernel for GPUs, and run on the CPU.
        concurrent_runs: calls of `logits` at once; all share the GPU.

    Raises:
        RuntimeMissingError: there is no GPU, or the installed ONNX Runtime is not made for one.
        ModelError: ONNX Runtime cannot open the graph, or cannot load CUDA's libraries.
    """

    def _opened(self, path: Path, threads: int, spinning: bool) -> onnxruntime.InferenceSession:
        _check_gpu()
        options = session_options(threads, spinning)
        providers = (PROVIDER, EXACT), "CPUExecutionProvider"
        session = create_session(path, options, providers, advice=ADVICE)
        if PROVIDER not in session.get_providers():  # else everything would run on the CPU
            raise ModelError(
                f"ONNX Runtime cannot load its CUDA provider for {path}: the libraries of CUDA and "
                "cuDNN that its version needs are not found. Install them with "
                f"`{RUNTIMES[CUDA].install}`, or use runtime 'onnxruntime'."
            )
        return session


def _check_gpu() -> None:
    import onnxruntime

    if problem := gpu_problem():
        raise RuntimeMissingError(f"runtime {CUDA!r} {problem}. Use runtime 'onnxruntime'.")
    if PROVIDER not in onnxruntime.get_available_providers():
        raise RuntimeMissingError(
            f"runtime {CUDA!r}: the installed onnxruntime {onnxruntime.__version__} is made for "
            f"the CPU alone. Install the other with `{RUNTIMES[CUDA].install}`."
        )
    with redirect_stdout(sys.stderr):  # it prints what it does not find
        onnxruntime.preload_dlls()  # of pip's packages, which are on no search path


# --- from bertender.models.openvino_sums
# Sums of 8-bit products that OpenVINO would add wrongly on this CPU.
#
# x86 without 8-bit dot products adds pairs of products in 16 bits, which saturate where weights
# have
# more than 7 bits: wrong outputs, without an error. OpenVINO has no option against it.

LARGEST = 64
"""Of weights whose products with two numbers of 0 to 255 fit into 16 bits."""


def check_sums(openvino: ModuleType, graph: Path) -> None:
    """Raise ModelError where a graph's sums would saturate on this CPU."""
    if saturates() and (largest := largest_weight(openvino, graph)) > LARGEST:
        raise ModelError(
            f"this CPU has no 8-bit dot products, and OpenVINO would not add those of {graph} "
            f"exactly: weights are up to {largest}, allowed is {LARGEST}. Use runtime "
            "'onnxruntime', which adds them exactly, or quantize again with --target avx2."
        )


def largest_weight(openvino: ModuleType, graph: Path) -> int:
    """Return the largest 8-bit weight, by size, of products in integers; 0 without any.

    OpenVINO multiplies in integers where activations are rounded by scales that the graph has; else
    it turns weights back into floats, whose sums are exact.
    """
    nodes = _nodes(openvino, graph)
    if not _rounds_activations(nodes):
        return 0
    weights = (node.data for node in nodes if _is_weight(node))
    return max((int(np.abs(each.astype(np.int16)).max(initial=0)) for each in weights), default=0)


def has_static_scales(openvino: ModuleType, graph: Path) -> bool:
    """Return whether activations are rounded by scales that the graph has."""
    return _rounds_activations(_nodes(openvino, graph))


def _nodes(openvino: ModuleType, graph: Path) -> list[Any]:
    """Return the nodes of a graph; none of one that cannot be opened, which says so elsewhere."""
    try:
        return list(openvino.Core().read_model(str(graph)).get_ops())
    except RuntimeError:
        return []


def _rounds_activations(nodes: list[Any]) -> bool:
    return any(node.get_type_name() == "FakeQuantize" for node in nodes)


def _is_weight(node: Any) -> bool:
    """Return whether a node is a constant of 8-bit integers (inputs, outputs), and not a table."""
    if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "i8":
        return False
    readers = {each.get_node().get_type_name() for each in node.output(0).get_target_inputs()}
    return len(node.get_shape()) == 2 and "Gather" not in readers


# --- from bertender.models.openvino_graph
# OpenVINO as a predictor, on the CPU and quietly. It is imported when a graph is opened.

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

    Its 8-bit products are prepared for each shape anew; floats are hardly
    (`benchmarks/reports/engines.md`).
    """
    return has_static_scales(import_openvino(), graph)


def _first_line(error: RuntimeError) -> str:
    """Return the first line of a message that says something: the others trace C++ files."""
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next((line for line in lines if line and not line.startswith("Exception from")), "")
