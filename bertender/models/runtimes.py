"""RUNTIMES: the engines that run ONNX files; one is imported when it opens a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertender.core.packages import installed_version
from bertender.core.table import Table, on_demand
from bertender.models.onnx_predictor import OnnxPredictor

if TYPE_CHECKING:  # it loads PyTorch
    from bertender.models.predictor import Predictor

__all__ = ["DEFAULT_RUNTIME", "RUNTIMES", "WITH_INTEGERS", "Runtime", "RuntimeName"]


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
            open=on_demand("bertender.models.openvino_graph:OpenVinoPredictor"),
            package="openvino",
            install=OPENVINO,
            compiles_shapes=on_demand("bertender.models.openvino_graph:compiles_shapes"),
        ),
        "openvino-bf16": Runtime(
            title="OpenVINO bfloat16",
            summary="the same with bfloat16 for floats: less exact, and with AMX faster",
            open=on_demand("bertender.models.openvino_graph:Bfloat16Predictor"),
            package="openvino",
            install=OPENVINO,
            float_type="bfloat16",
            compiles_shapes=on_demand("bertender.models.openvino_graph:compiles_shapes"),
            cpu_flags=("avx512_bf16", "amx_bf16"),
        ),
        "onnxruntime-cuda": Runtime(
            title="ONNX Runtime CUDA",
            summary="runs float graphs on an NVIDIA GPU, meant for those of float16",
            open=on_demand("bertender.models.cuda_predictor:CudaPredictor"),
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
