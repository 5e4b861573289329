"""ONNX Runtime on an NVIDIA GPU as a predictor. It is imported when a graph is opened."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.errors import ModelError, RuntimeMissingError
from bertender.core.gpu import gpu_problem
from bertender.models.onnx_predictor import OnnxPredictor
from bertender.models.onnx_session import OTHER_VERSION, create_session, session_options
from bertender.models.runtimes import RUNTIMES

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["CudaPredictor"]

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
