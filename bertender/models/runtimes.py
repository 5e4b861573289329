"""RUNTIMES: engines for ONNX files, each imported only when it opens a graph.

x86 CPUs without 8-bit dot products add pairs of 8-bit products in 16 bits, which saturate where
weights have more than 7 bits: wrong outputs, without an error. ONNX Runtime has an option against
this, which sessions here set. OpenVINO has none, so that its runtimes refuse such graphs.
"""

from __future__ import annotations

import importlib
import platform
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.config import Table
from bertender.core.errors import ConfigError, ModelError, RuntimeMissingError
from bertender.core.hardware import (
    cpu_facts,
    gpu_problem,
    has_int8_acceleration,
    threads_by_default,
)
from bertender.core.machine import installed_version
from bertender.models.onnx_session import (
    OTHER_VERSION,
    OnnxPredictor,
    create_session,
    open_session,
    session_options,
)
from bertender.text.batch import Batch

FLOAT_PRECISIONS = ("float32", "float16", "bfloat16")
"""Precisions of artifacts that are not quantized."""
X86 = ("x86_64", "amd64")


class Predictor(Protocol):
    """A model that returns the logits of a batch."""

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch."""
        ...


@dataclass(frozen=True)
class Runtime(ABC):
    """An engine that runs ONNX graphs."""

    title: str
    summary: str
    package: str
    install: str
    float_type: str = "float32"
    """Data type of floating-point operators."""
    own_float_types: tuple[str, ...] = ()
    """Precisions of files that are computed in their own data type instead."""
    cpu_flags: tuple[str, ...] = ()
    """CPU flags of which one is needed; empty for any CPU."""
    exact_on_x86: bool = False
    """Whether 8-bit sums are exact even on x86 CPUs without 8-bit dot products."""
    dynamic_scales: bool = False
    """Whether products are in integers with dynamic scales of activations."""
    needs_gpu: bool = False
    """Whether an NVIDIA GPU is needed."""
    integer_products: bool = True
    """Whether products are in 8-bit integers, so that models are quantized for this runtime."""
    own_operators: bool = False
    """Whether operators of ONNX Runtime are supported: 4-bit table look-ups, 8-bit attention."""

    @abstractmethod
    def open(
        self, graph: Path, threads: int = 0, *, spinning: bool = True, concurrent_runs: int = 1
    ) -> Predictor:
        """Open a graph.

        Args:
            graph: file of the graph.
            threads: threads of a run; 0 takes OMP_NUM_THREADS, or else the runtime's default.
            spinning: let idle threads wait in a loop, which only suits a quiet machine.
            concurrent_runs: concurrent calls of `logits`, each with `threads`.

        Raises:
            RuntimeMissingError: the runtime is not installed, or does not support this machine.
            ModelError: the runtime cannot open the graph.
        """

    def compiles_shapes(self, graph: Path) -> bool:
        """Return whether the first batch of each shape takes much longer."""
        return False

    def runs_on(self, flags: Collection[str]) -> bool:
        """Return whether a CPU with these flags is supported."""
        return not self.cpu_flags or bool({*self.cpu_flags} & {*flags})

    def lacking_flags(self) -> tuple[str, ...]:
        """Return the flags of which one is needed, where this CPU has none of them."""
        _, there = cpu_facts()
        return () if self.runs_on(there) else self.cpu_flags

    def activations_of(self, precision: str) -> str:
        """Return the data type that activations of a float artifact are rounded to."""
        return precision if precision in self.own_float_types else self.float_type

    @property
    def version(self) -> str | None:
        """Version of the package; None if it is not installed."""
        return installed_version(self.package)


class OnnxRuntime(Runtime):
    """ONNX Runtime on the CPU."""

    def open(
        self, graph: Path, threads: int = 0, *, spinning: bool = True, concurrent_runs: int = 1
    ) -> OnnxPredictor:
        threads = _shared_threads(threads, concurrent_runs)
        return OnnxPredictor(open_session(graph, threads=threads, spinning=spinning))


class CudaRuntime(Runtime):
    """ONNX Runtime on the first GPU; operators without a kernel for GPUs run on the CPU."""

    def open(
        self, graph: Path, threads: int = 0, *, spinning: bool = True, concurrent_runs: int = 1
    ) -> OnnxPredictor:
        import onnxruntime

        if problem := gpu_problem():
            raise RuntimeMissingError(f"runtime {CUDA!r} {problem}. Use runtime 'onnxruntime'.")
        if CUDA_PROVIDER not in onnxruntime.get_available_providers():
            raise RuntimeMissingError(
                f"runtime {CUDA!r}: the installed onnxruntime {onnxruntime.__version__} is made "
                f"for the CPU alone. Install the other with `{self.install}`."
            )
        with redirect_stdout(sys.stderr):  # it prints missing libraries
            onnxruntime.preload_dlls()  # of pip packages, which are not on the search path
        session = create_session(
            graph,
            session_options(_shared_threads(threads, concurrent_runs), spinning),
            # TF32 would round float32 products to 10 bits
            providers=((CUDA_PROVIDER, {"use_tf32": "0"}), "CPUExecutionProvider"),
            advice=f"{OTHER_VERSION} If the GPU has no memory left, or is too old, use runtime "
            "'onnxruntime'.",
        )
        if CUDA_PROVIDER not in session.get_providers():  # everything would run on the CPU
            raise ModelError(
                f"ONNX Runtime cannot load its CUDA provider for {graph}: the libraries of CUDA "
                "and cuDNN that its version needs are not found. Install them with "
                f"`{self.install}`, or use runtime 'onnxruntime'."
            )
        return OnnxPredictor(session)


class OpenVino(Runtime):
    """OpenVINO on the CPU, with floats in `float_type`, since it would choose bfloat16 itself.

    Idle threads always sleep, whatever `spinning` is.
    """

    def open(
        self, graph: Path, threads: int = 0, *, spinning: bool = True, concurrent_runs: int = 1
    ) -> OpenVinoPredictor:
        if lacking := self.lacking_flags():
            raise RuntimeMissingError(
                f"runtime 'openvino-bf16' needs a CPU with {' or '.join(lacking)}, and this one "
                "has neither. Use runtime 'openvino'."
            )
        _check_sums(graph)
        hint = OPENVINO_TYPES[self.float_type]
        return OpenVinoPredictor(compiled(graph, threads, concurrent_runs, hint))

    def compiles_shapes(self, graph: Path) -> bool:
        """Return whether the graph has static scales.

        OpenVINO compiles their products again for each shape, but hardly anything for floats
        (`benchmarks/reports/engines.md`).
        """
        return _rounds_activations(_nodes(graph))


DEFAULT_RUNTIME = "onnxruntime"
CUDA, CUDA_PROVIDER = "onnxruntime-cuda", "CUDAExecutionProvider"
OPENVINO_TYPES = {"float32": "f32", "bfloat16": "bf16"}
"""OpenVINO's names of data types."""
INSTALL_OPENVINO = "pip install 'bertender[openvino]'"

RUNTIMES = Table[Runtime](
    "runtime",
    {
        "onnxruntime": OnnxRuntime(
            title="ONNX Runtime",
            summary="runs every graph that bertender writes",
            package="onnxruntime",
            install="pip install 'bertender[serve]', or 'bertender[train]'",
            exact_on_x86=True,
            dynamic_scales=True,
            own_operators=True,
        ),
        "openvino": OpenVino(
            title="OpenVINO",
            summary="runs float graphs, and static 8-bit ones in integers, dynamic ones in float",
            package="openvino",
            install=INSTALL_OPENVINO,
        ),
        "openvino-bf16": OpenVino(
            title="OpenVINO bfloat16",
            summary="the same with bfloat16 for floats: less exact, and with AMX faster",
            package="openvino",
            install=INSTALL_OPENVINO,
            float_type="bfloat16",
            cpu_flags=("avx512_bf16", "amx_bf16"),
        ),
        CUDA: CudaRuntime(
            title="ONNX Runtime CUDA",
            summary="runs float graphs on an NVIDIA GPU, meant for those of float16",
            package="onnxruntime-gpu",
            # both packages have the same files, so that removing one breaks the other
            install="pip uninstall -y onnxruntime onnxruntime-gpu && "
            "pip install 'onnxruntime-gpu[cuda,cudnn]'",
            own_float_types=("float16",),
            needs_gpu=True,
            integer_products=False,
        ),
    },
)

WITH_INTEGERS = tuple(name for name, row in RUNTIMES.items() if row.integer_products)
"""Runtimes that models are quantized for."""

RuntimeName = Annotated[str, RUNTIMES.validator()]
"""A name in RUNTIMES, as a setting."""


def suits(runtime: str, artifact: Artifact) -> bool:
    """Return whether a runtime runs an onnx artifact without turning its integers into floats."""
    return RUNTIMES[runtime].integer_products or artifact.card.precision in FLOAT_PRECISIONS


def preferred(runtimes: Sequence[str], artifact: Artifact) -> Sequence[str]:
    """Return the runtimes, among those that suit an onnx artifact, that fit it best.

    For float16, say, these are runtimes that compute in float16, if there are any; others convert
    it to float32.
    """
    precision = artifact.card.precision
    native = [name for name in runtimes if precision in RUNTIMES[name].own_float_types]
    return native or runtimes


def check_suits(runtime: str, artifact: Artifact) -> None:
    """Raise ConfigError where a runtime would run a quantized artifact in floats."""
    if not suits(runtime, artifact):
        raise ConfigError(
            f"runtime={runtime} multiplies no 8-bit integers, and {artifact.place} is of precision "
            f"{artifact.card.precision}: it would be slower than the float model. Give a float "
            "artifact, as `bertender export --precision float16` writes one, or another runtime: "
            f"{', '.join(WITH_INTEGERS)}."
        )


def check_used(artifacts: Sequence[Artifact], *names: str) -> None:
    """Check that each runtime has an artifact to run.

    Raises:
        ConfigError: a runtime is set and no artifact is of kind onnx, or an artifact has no
            suitable runtime among them, or a runtime has no artifact.
    """
    if set(names) - {DEFAULT_RUNTIME} and not any(each.card.kind == "onnx" for each in artifacts):
        raise ConfigError(
            f"runtime={','.join(names)} runs onnx artifacts, and none of these is one: "
            f"{', '.join(str(each.path) for each in artifacts)}. Export the model first: bertender "
            "export."
        )
    graphs = [each for each in artifacts if each.card.kind == "onnx"]
    for artifact in graphs:
        if not any(suits(name, artifact) for name in names):
            check_suits(names[0], artifact)
    for name in names if graphs else ():
        if not any(suits(name, artifact) for artifact in graphs):
            check_suits(name, graphs[0])


def runtime_of(artifact: Artifact, name: str) -> str | None:
    """Return the runtime of an onnx artifact; None for kinds with their own library."""
    return name if artifact.card.kind == "onnx" else None


def check_installed(*names: str) -> None:
    """Check that runtimes can run on this machine.

    Raises:
        RuntimeMissingError: a runtime is not installed, or needs another CPU, or a GPU.
    """
    for name in names:
        if obstacle := _obstacle(name):
            usable = ", ".join(other for other in RUNTIMES if not _obstacle(other))
            raise RuntimeMissingError(f"runtime {name!r} {obstacle}: {usable}.")


def _obstacle(name: str) -> str:
    """Return why a runtime cannot run here, without the list of alternatives; empty if it can."""
    runtime = RUNTIMES[name]
    if runtime.version is None:
        return f"is not installed. Install it with `{runtime.install}`, or use one that is"
    if lacking := runtime.lacking_flags():
        flags = " or ".join(lacking)
        return f"needs a CPU with {flags}, and this one has neither. Use another"
    problem = gpu_problem() if runtime.needs_gpu else ""
    return f"{problem}. Use another" if problem else ""


def tolerance_in(runtime: str, precision: str) -> str:
    """Return the name in TOLERANCES for a precision in a runtime.

    Activations rounded to fewer bits than float32 change the logits of single texts a lot.

    Args:
        runtime: a name in RUNTIMES, or an engine elsewhere.
        precision: precision of the artifact.
    """
    if precision not in FLOAT_PRECISIONS or runtime not in RUNTIMES:
        return precision
    activations = RUNTIMES[runtime].activations_of(precision)
    return precision if activations == "float32" else f"{activations}-activations"


def saturates() -> bool:
    """Return whether this CPU adds pairs of 8-bit products in 16 bits: x86 without dot products.

    False on systems other than Linux, which do not report CPU flags.
    """
    if platform.system() != "Linux" or platform.machine().lower() not in X86:
        return False
    return not has_int8_acceleration()


def _shared_threads(threads: int, runs: int) -> int:
    """Return the size of a session's thread pool, shared by all runs; it includes one caller."""
    threads = threads or threads_by_default()
    return threads * runs - (runs - 1) if threads else 0


class OpenVinoPredictor:
    """A predictor on a graph compiled by OpenVINO; arrays that it does not take are left out."""

    def __init__(self, graph: Any) -> None:
        self.compiled = graph
        self.inputs = tuple(each.get_any_name() for each in graph.inputs)
        self._requests = threading.local()  # a request runs one batch at a time

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch."""
        arrays = {name: batch.arrays[name] for name in self.inputs}
        if not hasattr(self._requests, "own"):
            self._requests.own = self.compiled.create_infer_request()
        # copied, since the next batch overwrites the outputs of the request
        logits = self._requests.own.infer(arrays, share_inputs=True)["logits"]
        return np.asarray(logits, dtype=np.float32)


def compiled(
    graph: Path | bytes,
    threads: int = 0,
    concurrent_runs: int = 1,
    float_type: str = "f32",
) -> Any:
    """Compile a graph with OpenVINO for this CPU; see `Runtime.open`."""
    openvino = import_openvino()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": concurrent_runs,
        "INFERENCE_PRECISION_HINT": float_type,
        # pinned threads wait for other work on their core; on quiet cores pinning gained nothing
        "ENABLE_CPU_PINNING": False,
    }
    threads = threads or threads_by_default()
    if threads:
        # the exact number of threads; OpenVINO would use one hyper-thread per core
        every = threads * concurrent_runs
        settings |= {"INFERENCE_NUM_THREADS": every, "ENABLE_HYPER_THREADING": True}
    try:
        core = openvino.Core()
        model = core.read_model(graph if isinstance(graph, bytes) else str(graph))
        return core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        name = "a part of a graph" if isinstance(graph, bytes) else graph
        # the first line with a message; others are a C++ trace
        lines = (line.strip().rstrip(".") for line in str(error).splitlines())
        said = (line for line in lines if line and not line.startswith("Exception from"))
        raise ModelError(
            f"OpenVINO {openvino.__version__} cannot open {name}: {next(said, '')}. Use runtime "
            "'onnxruntime', or export and quantize the model again."
        ) from None


def import_openvino() -> ModuleType:
    """Import OpenVINO without its telemetry.

    Raises:
        RuntimeMissingError: OpenVINO is not installed.
    """
    with _hidden("openvino_telemetry"):  # with it, the import would send an event
        try:
            return importlib.import_module("openvino")
        except ImportError as error:
            raise RuntimeMissingError(
                f"runtime 'openvino' cannot be imported: {error}. Install it with "
                f"`{INSTALL_OPENVINO}`, or use runtime {DEFAULT_RUNTIME!r}."
            ) from None


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Make a package impossible to import, inside the block."""
    absent = object()
    before: Any = sys.modules.get(package, absent)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        if before is not absent:
            sys.modules[package] = before


LARGEST_EXACT = 64
"""Largest weight for which the sum of two products with 0 to 255 fits into 16 bits."""


def _check_sums(graph: Path) -> None:
    """Raise ModelError where OpenVINO's sums would saturate on this CPU."""
    if saturates() and (largest := largest_weight(graph)) > LARGEST_EXACT:
        raise ModelError(
            f"this CPU has no 8-bit dot products, and OpenVINO would not add those of {graph} "
            f"exactly: weights are up to {largest}, allowed is {LARGEST_EXACT}. Use runtime "
            "'onnxruntime', which adds them exactly, or quantize again with --target avx2."
        )


def largest_weight(graph: Path) -> int:
    """Return the largest absolute 8-bit weight of products in integers; 0 without any.

    OpenVINO multiplies in integers where the graph has static scales of activations; otherwise it
    converts weights to floats, whose sums are exact.
    """
    nodes = _nodes(graph)
    if not _rounds_activations(nodes):
        return 0
    weights = (node.data for node in nodes if _is_weight(node))
    return max((int(np.abs(each.astype(np.int16)).max(initial=0)) for each in weights), default=0)


def _nodes(graph: Path) -> list[Any]:
    """Return the nodes of a graph; none if it cannot be opened, which another step reports."""
    try:
        return list(import_openvino().Core().read_model(str(graph)).get_ops())
    except RuntimeError:
        return []


def _rounds_activations(nodes: list[Any]) -> bool:
    return any(node.get_type_name() == "FakeQuantize" for node in nodes)


def _is_weight(node: Any) -> bool:
    """Return whether a node is an 8-bit constant (inputs, outputs), and not an embedding table."""
    if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "i8":
        return False
    readers = {each.get_node().get_type_name() for each in node.output(0).get_target_inputs()}
    return len(node.get_shape()) == 2 and "Gather" not in readers
